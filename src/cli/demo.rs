//! `berth demo`: starts the service in this process and tells the whole story to it over real HTTP.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{Configured, story};
use crate::app::{App, Result};
use crate::config::{Config, Settings};
use crate::{id, telemetry};

/// Runs the demo; an error names the step that did not hold.
pub async fn run(configured: Configured, provider: &str, image: &str) -> Result<()> {
    let mut settings = configured.settings()?;
    settings.providers = Some(vec![provider.to_owned()]);
    let scratch = settings.data_dir.is_none().then(Scratch::make).transpose()?;
    let loopback = SocketAddr::from(([127, 0, 0, 1], 0));
    let data_dir = settings.data_dir.clone().or_else(|| scratch.as_ref().map(|scratch| scratch.0.clone()));
    let kept = data_dir.as_ref().and_then(|dir| std::fs::read_to_string(dir.join("bootstrap.key")).ok());
    let set = settings.bootstrap_key.as_ref().map(|key| key.reveal().to_owned());
    let key = set.or(kept.map(|key| key.trim().to_owned())).unwrap_or_else(|| format!("berth_sk_demo-{}-{}", id::new(), id::new()));
    let config = Config::new(Settings {
        listen: Some(loopback),
        metrics_listen: Some(loopback),
        data_dir,
        bootstrap_key: Some(key.clone().into()),
        log: settings.log.clone().or_else(|| Some("error".to_owned())),
        ..settings
    })?;
    telemetry::start(&config.log, config.log_format)?;
    let app = App::open(&config).await?;
    println!("Berth listens on http://{} and keeps its data in {}.\n", app.address, config.data_dir.display());
    let url = format!("http://{}", app.address);
    let sandboxes = app.provider(provider).ok_or_else(|| format!("there is no provider {provider}"))?;
    let wanted = if provider == "docker" { json!({ "image": image }) } else { json!({}) };
    let stop = CancellationToken::new();
    let telling = async {
        let told = story::tell(&url, &key, &*sandboxes, &wanted).await;
        stop.cancel();
        told
    };
    let (told, served) = tokio::join!(telling, app.serve(stop.clone()));
    told.and(served)?;
    println!("\nEvery step held.");
    Ok(())
}

/// A data directory that lasts as long as the demo.
struct Scratch(PathBuf);

impl Scratch {
    fn make() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("berth-demo-{}", id::new()));
        std::fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("{} stays: {error}", self.0.display());
        }
    }
}
