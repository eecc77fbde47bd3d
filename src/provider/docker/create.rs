//! Making a container: named and sealed for its instance, confined, started; or found as an earlier call made it.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use super::config::Config;
use super::engine::Failure;
use super::owner::{self, ENGINE, Labels, USER, WORKSPACE};
use super::wire::{Container, Created, Image};
use super::{Docker, STATE};
use crate::provider::{Kind, Made, OwnerTag, ProviderError, Result, Spec, stream};

/// What the container itself runs: nothing, until it is stopped, with what a shell has built in.
const KEEPER: &str = "while read -r _; do :; done";
/// Marks what the container itself runs, so that it is no command's.
const OWN: &str = "BERTH_EXEC=main:control:";
/// The shell that everything inside goes through.
const SHELL: &str = "/bin/sh";
/// How often an answer that explains nothing is taken for a name that somebody else just took.
const UNEXPLAINED: u32 = 3;

/// The user that Berth's own files in a container belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl Owner {
    /// Reads `uid` or `uid:gid`; a name is not read, since what it means is in the container alone.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (uid, gid) = text.split_once(':').unwrap_or((text, text));
        Some(Self { uid: uid.parse().ok()?, gid: gid.parse().ok()? })
    }
}

impl Docker {
    /// The container of this tag, made and started unless it is there.
    pub(super) async fn make(&self, spec: &Spec, tag: &OwnerTag) -> Result<Made> {
        self.make_of(spec, tag, None).await
    }

    /// The same, of another image than the configuration's.
    pub(super) async fn make_of(&self, spec: &Spec, tag: &OwnerTag, image: Option<Image>) -> Result<Made> {
        let config = Config::of(spec)?;
        let workspace = config.workspace(spec)?;
        if let Some(found) = self.look_by_name(tag).await? {
            return self.adopt(found, tag).await;
        }
        let image = match image {
            Some(image) => image,
            None => self.images.get(&self.engine, &config.image, config.registry_auth.as_ref()).await?,
        };
        self.images.check(&self.engine, &image).await?;
        let owner = owner_of(&config, &image)?;
        if config.read_only_root && owner != ROOT {
            return Err(ProviderError::new(Kind::Invalid, "with a read-only root the user is root, who owns the workspace's volume"));
        }
        let mut labels = self.seal.labels(tag);
        labels.insert(WORKSPACE.to_owned(), workspace.clone());
        labels.insert(USER.to_owned(), format!("{}:{}", owner.uid, owner.gid));
        labels.insert(ENGINE.to_owned(), self.binding.root(&self.engine).await?);
        let body = self.body(&config, &image, &workspace, labels);
        let mut unexplained = 0;
        let made = loop {
            match self.engine.post::<Created>("/containers/create", &[("name", &owner::name(tag.instance))], &body).await {
                Ok(made) => break made,
                // Somebody else was faster with the same tag, and may still be at it: a name is taken before its container is there.
                // Podman tells it like any failure of its own.
                Err(failure) if failure.is(409) || failure.is(500) => match self.look_by_name(tag).await? {
                    Some(found) => return self.adopt(found, tag).await,
                    None if failure.is(500) && unexplained == UNEXPLAINED => return Err(failure.into()),
                    None => {
                        unexplained += 1;
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                },
                Err(failure) if failure.is(404) => return Err(ProviderError::new(Kind::NoImage, "the image went away")),
                Err(failure) => return Err(failure.into()),
            }
        };
        self.begin(&made.id, &image, owner, &workspace).await?;
        Ok(Made { provider_ref: made.id, provider_expires_at: None, metadata: None })
    }

    /// The container of this tag's name, if there is one; none only with proof.
    pub(super) async fn look_by_name(&self, tag: &OwnerTag) -> Result<Option<Container>> {
        match self.engine.get(&format!("/containers/{}/json", owner::name(tag.instance)), &[]).await {
            Ok(found) => Ok(Some(found)),
            Err(failure) if failure.is(404) => self.binding.still(&self.engine).await.map(|()| None),
            Err(failure) => Err(failure.into()),
        }
    }

    /// The ref of a container that an earlier call with this tag made.
    pub(super) fn recognize(&self, found: &Container, tag: &OwnerTag) -> Result<Made> {
        let labels = found.config.labels.clone().unwrap_or_default();
        if self.seal.tag_of(&found.name, &labels).as_ref() == Some(tag) {
            return Ok(Made { provider_ref: found.id.clone(), provider_expires_at: None, metadata: None });
        }
        Err(ProviderError::new(Kind::Refused, "a container that is not ours has the instance's name"))
    }

    async fn adopt(&self, found: Container, tag: &OwnerTag) -> Result<Made> {
        let made = self.recognize(&found, tag)?;
        if found.state.status == "created" {
            // Whoever made it may not have come to this, or may be at it; each step can be repeated.
            let image: Image = self.engine.get(&format!("/images/{}/json", found.image), &[]).await?;
            let facts = self.facts(&made.provider_ref).await?;
            self.prepare(&made.provider_ref, facts.owner, &facts.workspace, facts.owner != ROOT).await?;
            self.run_or_remove(&made.provider_ref, &image).await?;
        }
        Ok(made)
    }

    async fn begin(&self, id: &str, image: &Image, owner: Owner, workspace: &str) -> Result<()> {
        let prepared = self.prepare(id, owner, workspace, owner != ROOT).await;
        match prepared {
            Ok(()) => self.run_or_remove(id, image).await,
            Err(error) => Err(self.take_back(id, error).await),
        }
    }

    /// Where the engine alone can make the directories that a command needs, it does so before the start.
    async fn prepare(&self, id: &str, owner: Owner, workspace: &str, needed: bool) -> Result<()> {
        if !needed {
            return Ok(());
        }
        let mut tar = super::tarball::Tarball::new(owner);
        tar.directories(workspace.trim_start_matches('/').as_bytes(), 0o755);
        tar.directory(STATE.trim_start_matches('/').as_bytes(), 0o1777);
        self.put_stream(id, "/", stream::from_bytes(tar.finish())).await
    }

    async fn run_or_remove(&self, id: &str, image: &Image) -> Result<()> {
        let known = self.images.is_fit(&image.id);
        if !known && self.head(id, SHELL).await?.is_none() {
            let error = ProviderError::new(Kind::Invalid, "the image has no /bin/sh, which commands are run through");
            return Err(self.take_back(id, error).await);
        }
        match self.engine.act(Method::POST, &format!("/containers/{id}/start"), &[]).await {
            Ok(_) => {}
            Err(Failure::Status(status, words)) => {
                let kind = if status.is_client_error() { Kind::Invalid } else { Kind::Refused };
                let error = ProviderError::new(kind, "the container cannot be started as it is configured");
                return Err(self.take_back(id, error.because(std::io::Error::other(words))).await);
            }
            Err(failure) => return Err(failure.into()),
        }
        if !known {
            self.try_shell(id).await?;
            self.images.note_fit(image.id.clone());
        }
        Ok(())
    }

    /// Runs something small through the container's shell: the engine also starts a file that is no program for this machine, and
    /// only the container's end tells.
    async fn try_shell(&self, id: &str) -> Result<()> {
        let facts = self.facts(id).await?;
        let Err(error) = self.control(id, &facts, "count", &[], None).await else { return Ok(()) };
        let mut ended = false;
        // The broken connection is seen a moment before the end that broke it.
        for _ in 0..20 {
            ended = matches!(self.inspect(id).await?.state.status.as_str(), "exited" | "dead");
            if ended || error.kind == Kind::Invalid {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let error = if ended {
            ProviderError::new(Kind::Invalid, "the container ended at once: its command, or the image's /bin/sh, does not run")
                .because(error)
        } else {
            error
        };
        Err(self.take_back(id, error).await)
    }

    /// Removes what was made, so that an error may say that nothing was; if that fails too, only a look can tell.
    async fn take_back(&self, id: &str, error: ProviderError) -> ProviderError {
        match self.engine.act(Method::DELETE, &format!("/containers/{id}"), &[("force", "true"), ("v", "true")]).await {
            Ok(_) => error,
            Err(failure) if failure.is(404) => error,
            Err(_) => ProviderError::new(Kind::Indeterminate, "a container that cannot be used could not be removed").because(error),
        }
    }

    fn body(&self, config: &Config, image: &Image, workspace: &str, labels: Labels) -> Value {
        let resources = config.resources(&self.ceilings);
        let mut env: Vec<String> = config.env.iter().map(|(key, value)| format!("{key}={value}")).collect();
        env.push(OWN.to_owned());
        // What an image of an earlier container brings along is not this one's.
        let mut all: BTreeMap<String, String> = image
            .config
            .as_ref()
            .and_then(|of| of.labels.clone())
            .unwrap_or_default()
            .into_keys()
            .filter(|key| key.starts_with("berth."))
            .map(|key| (key, String::new()))
            .collect();
        all.extend(labels);
        let volumes = if config.read_only_root { vec![workspace, STATE] } else { Vec::new() };
        let mounts: Vec<Value> = volumes.iter().map(|target| json!({ "Type": "volume", "Target": target })).collect();
        let tmpfs: BTreeMap<&String, String> =
            config.tmpfs.iter().map(|(path, one)| (path, format!("rw,nosuid,nodev,size={}m", one.size_mb))).collect();
        let ulimits: Vec<Value> =
            config.ulimits.iter().map(|(name, limit)| json!({ "Name": name, "Soft": limit.soft, "Hard": limit.hard })).collect();
        let (entrypoint, command) = if config.command.is_empty() {
            (vec![SHELL.to_owned(), "-c".to_owned(), KEEPER.to_owned()], Vec::new())
        } else {
            (config.command[..1].to_vec(), config.command[1..].to_vec())
        };
        json!({
            "Image": image.id,
            "Entrypoint": entrypoint,
            "Cmd": command,
            "User": config.user.clone().unwrap_or_default(),
            "Env": env,
            "WorkingDir": workspace,
            "Labels": all,
            "OpenStdin": true,
            "StopSignal": "SIGTERM",
            "HostConfig": {
                "Init": true,
                "Privileged": false,
                "CapDrop": ["ALL"],
                "SecurityOpt": ["no-new-privileges:true"],
                "NetworkMode": config.network(),
                "IpcMode": "private",
                "PidsLimit": resources.pids,
                "Memory": resources.memory_bytes,
                "MemorySwap": resources.memory_bytes,
                "NanoCpus": resources.nano_cpus,
                "ReadonlyRootfs": config.read_only_root,
                "Runtime": config.runtime,
                "Mounts": mounts,
                "Tmpfs": tmpfs,
                "Ulimits": ulimits,
                "LogConfig": { "Type": "none" },
                "RestartPolicy": { "Name": "no" },
            }
        })
    }
}

/// Root inside the container, without any capability.
const ROOT: Owner = Owner { uid: 0, gid: 0 };

fn owner_of(config: &Config, image: &Image) -> Result<Owner> {
    let of_image = image.config.as_ref().and_then(|of| of.user.as_deref()).filter(|user| !user.is_empty());
    let user = match (&config.user, of_image) {
        (Some(user), _) => user.as_str(),
        (None, Some("root") | None) => return Ok(ROOT),
        (None, Some(user)) => user,
    };
    Owner::parse(user)
        .ok_or_else(|| ProviderError::new(Kind::Invalid, "the image runs as a named user; the environment must give its numbers as `user`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_numbers() {
        assert_eq!(Owner::parse("1000"), Some(Owner { uid: 1000, gid: 1000 }));
        assert_eq!(Owner::parse("1000:50"), Some(Owner { uid: 1000, gid: 50 }));
        assert_eq!(Owner::parse("node"), None);
    }
}
