//! What the providers of this server are and can do.

use std::time::Duration;

use super::Berth;
use super::view::ProviderView;
use crate::error::Result;
use crate::model::capability;

/// Every provider of this server, and whether it answers now.
pub async fn list(berth: &Berth) -> Result<Vec<ProviderView>> {
    let mut views = Vec::new();
    for provider in berth.providers.all() {
        let traits = provider.traits();
        let answer = tokio::time::timeout(Duration::from_secs(3), provider.binding()).await;
        let not_ready_reason = match answer {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(error.message.to_owned()),
            Err(_) => Some("it did not answer in 3 s".to_owned()),
        };
        views.push(ProviderView {
            kind: traits.kind.to_owned(),
            config_schema: provider.config_schema(),
            capabilities: capability::KEYS.iter().map(|key| ((*key).to_owned(), traits.capabilities.contains(key))).collect(),
            isolation: format!("{:?}", traits.isolation).to_lowercase(),
            fencing: traits.fencing,
            ready: not_ready_reason.is_none(),
            not_ready_reason,
        });
    }
    views.push(of_plugins());
    Ok(views)
}

/// Every server has plugins; what one can do is its driver's to say, see `GET /v1/plugins`.
fn of_plugins() -> ProviderView {
    ProviderView {
        kind: crate::provider::plugin::KIND.to_owned(),
        config_schema: super::plugins::envelope_schema(),
        capabilities: capability::KEYS.iter().map(|key| ((*key).to_owned(), false)).collect(),
        isolation: "remote".to_owned(),
        fencing: false,
        ready: true,
        not_ready_reason: None,
    }
}
