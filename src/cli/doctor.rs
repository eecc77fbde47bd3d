//! `berth doctor`: checks what the service stands on, and says what is wrong.

use super::Configured;
use crate::app::{Result, open_berth};
use crate::ops;

/// Prints one line for each thing that was looked at; fails if one of them is not well.
pub async fn run(configured: Configured) -> Result<()> {
    let config = configured.load()?;
    let mut ill = 0;
    let mut say = |what: &str, found: std::result::Result<String, String>| match found {
        Ok(well) => println!("ok    {what:<14} {well}"),
        Err(wrong) => {
            ill += 1;
            println!("wrong {what:<14} {wrong}");
        }
    };
    say("configuration", Ok(format!("listens on {}, data in {}", config.listen, config.data_dir.display())));
    match open_berth(&config).await {
        Ok((berth, _lock)) => {
            let writable = ops::health::writable(&berth).await;
            say("database", writable.map(|()| "a write works".to_owned()).map_err(|error| error.detail));
            match ops::provider::list(&berth).await {
                Ok(providers) => {
                    for provider in providers {
                        let why = provider.not_ready_reason.unwrap_or_else(|| "not ready".to_owned());
                        let well = format!("ready, isolation {}", provider.isolation);
                        say(&provider.kind, if provider.ready { Ok(well) } else { Err(why) });
                    }
                }
                Err(error) => say("providers", Err(error.detail)),
            }
        }
        Err(wrong) => say("database", Err(wrong)),
    }
    if ill == 0 { Ok(()) } else { Err(format!("{ill} of these are not well")) }
}
