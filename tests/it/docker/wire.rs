//! A socket between Berth and its engine that loses answers, cuts streams, hangs, refuses, or is another engine.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;

use super::engine::host;

/// What happens to whatever passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// Nobody is there.
    Refuse,
    /// Nothing is ever answered.
    Hang,
    /// The next request whose path ends so is done, and its answer is lost.
    LoseAnswer(&'static str),
    /// The next stream that is taken over breaks after so many bytes.
    CutStream(usize),
    /// An engine of the same id with an empty data root.
    Emptied,
}

pub struct Proxy {
    _dir: tempfile::TempDir,
    path: PathBuf,
    fault: Arc<Mutex<Fault>>,
    serving: Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(serving) = self.serving.lock().unwrap().take() {
            serving.abort();
        }
    }
}

impl Proxy {
    pub fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("engine.sock");
        let proxy = Self { _dir: dir, path, fault: Arc::new(Mutex::new(Fault::None)), serving: Mutex::default() };
        proxy.listen();
        proxy
    }

    pub fn address(&self) -> String {
        format!("unix://{}", self.path.display())
    }

    /// From here on this happens. Connections are not kept over a change.
    pub fn set(&self, fault: Fault) {
        *self.fault.lock().unwrap() = fault;
        if let Some(serving) = self.serving.lock().unwrap().take() {
            serving.abort();
        }
        let _ = std::fs::remove_file(&self.path);
        if fault != Fault::Refuse {
            self.listen();
        }
    }

    fn listen(&self) {
        let listener = UnixListener::bind(&self.path).unwrap();
        let fault = Arc::clone(&self.fault);
        let mut connections = tokio::task::JoinSet::new();
        *self.serving.lock().unwrap() = Some(tokio::task::spawn(async move {
            loop {
                let Ok((client, _)) = listener.accept().await else { return };
                connections.spawn(serve(client, Arc::clone(&fault)));
            }
        }));
    }
}

/// One connection: its requests are seen, since each begins with a line of its own.
async fn serve(client: UnixStream, fault: Arc<Mutex<Fault>>) {
    let engine = UnixStream::connect(host().trim_start_matches("unix://")).await.unwrap();
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_engine, mut to_engine) = engine.into_split();
    let (say, said) = tokio::sync::watch::channel(Fault::None);
    let (answers, mut answered) = tokio::sync::mpsc::channel::<String>(1);
    let up = async {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let read = from_client.read(&mut buffer).await.unwrap_or(0);
            if read == 0 {
                break;
            }
            let (now, line) = (*fault.lock().unwrap(), first_line(&buffer[..read]));
            let mine = match now {
                Fault::Hang => true,
                Fault::Emptied => line.is_some(),
                Fault::LoseAnswer(end) => {
                    line.as_deref().is_some_and(|line| line.split(['?', ' ']).nth(1).is_some_and(|path| path.ends_with(end)))
                }
                Fault::CutStream(_) => line.as_deref().is_some_and(|line| line.contains("/exec/") && line.contains("/start")),
                Fault::None | Fault::Refuse => false,
            };
            if mine {
                if matches!(now, Fault::LoseAnswer(_) | Fault::CutStream(_)) {
                    *fault.lock().unwrap() = Fault::None;
                }
                say.send_replace(now);
                if now == Fault::Hang {
                    std::future::pending::<()>().await;
                }
                if now == Fault::Emptied
                    && let Some(answer) = emptied(line.as_deref().unwrap_or_default())
                {
                    let _ = answers.send(answer).await;
                    continue;
                }
            }
            if to_engine.write_all(&buffer[..read]).await.is_err() {
                break;
            }
        }
        let _ = to_engine.shutdown().await;
        // Half of the connection is closed; the other goes on.
        std::future::pending::<()>().await;
    };
    let down = async {
        let (mut buffer, mut passed) = (vec![0; 64 * 1024], 0);
        loop {
            let read = tokio::select! {
                read = from_engine.read(&mut buffer) => read.unwrap_or(0),
                Some(answer) = answered.recv() => {
                    let _ = to_client.write_all(answer.as_bytes()).await;
                    let _ = to_client.shutdown().await;
                    return;
                }
            };
            if read == 0 {
                return;
            }
            let now = *said.borrow();
            match now {
                // Done by now, and a moment later surely.
                Fault::LoseAnswer(_) => return tokio::time::sleep(Duration::from_millis(50)).await,
                Fault::CutStream(most) if passed + read > most => return,
                _ => {}
            }
            passed += read;
            if to_client.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = up => {}
        () = down => {}
    }
}

/// What an engine with an empty data root answers; none where it answers as before.
fn emptied(line: &str) -> Option<String> {
    if line.contains("/version") || line.contains("/info") {
        return None;
    }
    let (status, body) = if line.contains("/volumes/") {
        ("200 OK", r#"{"Name":"berth-engine","Labels":{"berth.engine":"another"}}"#)
    } else {
        ("404 Not Found", r#"{"message":"No such container"}"#)
    };
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}", body.len());
    Some(format!("{head}\r\nConnection: close\r\n\r\n{body}"))
}

fn first_line(bytes: &[u8]) -> Option<String> {
    let line = String::from_utf8_lossy(bytes.split(|byte| *byte == b'\r').next()?).into_owned();
    line.ends_with("HTTP/1.1").then_some(line)
}
