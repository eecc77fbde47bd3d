//! The Engine API's client: one call at a time, with a deadline, and with failures that say what is known.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::TryStreamExt;
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;
use tokio_util::io::StreamReader;

use super::address::{Address, Certificates};
use super::wire::Version;
use crate::provider::{ByteStream, Kind, ProviderError, Result};
use crate::trace;

/// The newest version of the API that this client was written for.
const NEWEST: ApiVersion = ApiVersion(1, 47);
/// The oldest one that has all it needs.
const OLDEST: ApiVersion = ApiVersion(1, 41);
/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(4);
/// How long an answer to a question may take.
pub(super) const LOOK: Duration = Duration::from_secs(5);
/// How long an answer to a command may take.
pub(super) const ACT: Duration = Duration::from_secs(50);
/// An answer larger than this is none.
const MOST_ANSWER: usize = 32 << 20;

/// A version of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ApiVersion(u32, u32);

impl ApiVersion {
    fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.split_once('.')?;
        Some(Self(major.parse().ok()?, minor.parse().ok()?))
    }
}

/// What an engine said about itself.
#[derive(Clone, Debug)]
pub(super) struct About {
    version: ApiVersion,
    /// Its processor, as images name theirs.
    pub(super) architecture: String,
    /// Whether it is Podman's service, which says another id each time it is asked.
    pub(super) is_podman: bool,
}

/// Why a call had no good answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// Nobody is at the engine's address: surely nothing happened.
    Unreachable(reqwest::Error),
    /// The answer was lost or did not come in time: what was asked may have happened.
    Lost(Option<reqwest::Error>),
    /// The engine said no.
    Status(StatusCode, String),
    /// The engine cannot be worked with.
    Unfit(&'static str),
}

impl Failure {
    /// Whether the engine answered with this status.
    pub(super) fn is(&self, status: u16) -> bool {
        matches!(self, Self::Status(told, _) if *told == status)
    }
}

impl From<Failure> for ProviderError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Unreachable(e) => Self::new(Kind::Refused, "the container engine cannot be reached").because(e),
            Failure::Lost(Some(e)) => Self::new(Kind::Indeterminate, "the container engine's answer was lost").because(e),
            Failure::Lost(None) => Self::new(Kind::Indeterminate, "the container engine did not answer in time"),
            Failure::Unfit(why) => Self::new(Kind::Refused, why),
            Failure::Status(status, words) => {
                let (kind, message) = match status.as_u16() {
                    // The engine has no code for it; its words decide nothing but how the failure is named.
                    500 if is_full(&words) => (Kind::Full, "the container engine's storage is full"),
                    400 => (Kind::Invalid, "the container engine does not take this"),
                    401 | 403 => (Kind::Refused, "the container engine refuses this client"),
                    409 => (Kind::Refused, "the container is in another state"),
                    429 | 503 => (Kind::Throttled(Duration::from_secs(2)), "the container engine asks for patience"),
                    _ => (Kind::Transient, "the container engine failed"),
                };
                Self::new(kind, message).because(std::io::Error::other(words))
            }
        }
    }
}

fn is_full(words: &str) -> bool {
    words.contains("no space left on device") || words.contains("disk quota exceeded")
}

/// An answer, or why there is none.
pub(super) type Answer<T> = std::result::Result<T, Failure>;

/// One engine. Clones share its connections.
#[derive(Debug)]
pub(super) struct Engine {
    client: Client,
    base: String,
    about: Mutex<Option<About>>,
}

impl Engine {
    /// A client of the engine at this address; nothing is asked yet.
    pub(super) fn new(address: &Address, certificates: Option<&Certificates>) -> Result<Self> {
        let mut builder = Client::builder()
            .no_proxy()
            .http1_only()
            .connect_timeout(CONNECT)
            .pool_idle_timeout(Duration::from_secs(20))
            .redirect(reqwest::redirect::Policy::none());
        let base = match (address, certificates) {
            (Address::Unix(path), _) => {
                // A connection costs next to nothing on this machine, and one that is kept may be one that the engine has closed since.
                builder = builder.unix_socket(path.as_path()).pool_max_idle_per_host(0);
                "http://engine".to_owned()
            }
            (Address::Tcp(host), None) => format!("http://{host}"),
            (Address::Tcp(host), Some(certificates)) => {
                builder = certificates.apply(builder)?;
                format!("https://{host}")
            }
        };
        let client = builder.build().map_err(|e| ProviderError::new(Kind::Invalid, "no client for the engine").because(e))?;
        Ok(Self { client, base, about: Mutex::new(None) })
    }

    /// What the engine is; asked once, and again after it could not be reached.
    pub(super) async fn about(&self) -> Answer<About> {
        if let Some(known) = self.about.lock().unwrap_or_else(PoisonError::into_inner).clone() {
            return Ok(known);
        }
        let asked = self.client.get(format!("{}/version", self.base));
        let told: Version = parse(self.answer(asked, LOOK).await?)?;
        let unfit = Failure::Unfit("the container engine has no API version between 1.41 and 1.47");
        let newest = ApiVersion::parse(&told.newest_api).filter(|newest| *newest >= OLDEST);
        let oldest = told.oldest_api.as_deref().and_then(ApiVersion::parse).unwrap_or(OLDEST);
        let Some(newest) = newest.filter(|_| oldest <= NEWEST) else { return Err(unfit) };
        let is_podman = told.components.iter().any(|one| one.name == "Podman Engine");
        let about = About { version: newest.min(NEWEST), architecture: told.arch, is_podman };
        *self.about.lock().unwrap_or_else(PoisonError::into_inner) = Some(about.clone());
        Ok(about)
    }

    /// A request in the negotiated version; `path` is whole but for its values, which are in `query`.
    pub(super) async fn request(&self, method: Method, path: &str, query: &[(&str, &str)]) -> Answer<RequestBuilder> {
        let ApiVersion(major, minor) = self.about().await?.version;
        let request = self.client.request(method, format!("{}/v{major}.{minor}{path}", self.base)).query(query);
        Ok(match trace::current() {
            Some(trace) => request.header("traceparent", trace.as_str()),
            None => request,
        })
    }

    /// Asks for something.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str, query: &[(&str, &str)]) -> Answer<T> {
        let request = self.request(Method::GET, path, query).await?;
        parse(self.answer(request, LOOK).await?)
    }

    /// Asks for something to be done, and reads what came of it.
    pub(super) async fn post<T: DeserializeOwned>(&self, path: &str, query: &[(&str, &str)], body: &impl Serialize) -> Answer<T> {
        let request = self.request(Method::POST, path, query).await?.json(body);
        parse(self.answer(request, ACT).await?)
    }

    /// Asks for something to be done; true when that changed anything (304 says that it was so already).
    pub(super) async fn act(&self, method: Method, path: &str, query: &[(&str, &str)]) -> Answer<bool> {
        let request = self.request(method, path, query).await?;
        let response = timeout(ACT, self.send(request)).await.unwrap_or(Err(Failure::Lost(None)))?;
        Ok(response.status() != StatusCode::NOT_MODIFIED)
    }

    /// Reads a whole answer within a deadline.
    pub(super) async fn answer(&self, request: RequestBuilder, within: Duration) -> Answer<Bytes> {
        let whole = async {
            let mut response = self.send(request).await?;
            let mut body = Vec::new();
            while let Some(chunk) = response.chunk().await.map_err(|e| Failure::Lost(Some(e)))? {
                if body.len() + chunk.len() > MOST_ANSWER {
                    return Err(Failure::Unfit("the container engine's answer is too large"));
                }
                body.extend_from_slice(&chunk);
            }
            Ok(body.into())
        };
        timeout(within, whole).await.unwrap_or(Err(Failure::Lost(None)))
    }

    /// Sends a request; a bad status is read to its words, which go no further than the failure's source.
    pub(super) async fn send(&self, request: RequestBuilder) -> Answer<Response> {
        let response = request.send().await.map_err(|e| {
            if e.is_connect() {
                *self.about.lock().unwrap_or_else(PoisonError::into_inner) = None;
                Failure::Unreachable(e)
            } else {
                Failure::Lost(Some(e))
            }
        })?;
        let status = response.status();
        if status.is_success() || status == StatusCode::NOT_MODIFIED || status == StatusCode::SWITCHING_PROTOCOLS {
            return Ok(response);
        }
        let words = timeout(LOOK, response.bytes()).await.ok().and_then(std::result::Result::ok).unwrap_or_default();
        Err(Failure::Status(status, String::from_utf8_lossy(&words[..words.len().min(2000)]).into_owned()))
    }
}

/// The body of an answer as a stream; one that breaks off is an error and not an end.
pub(super) fn body(response: Response) -> ByteStream {
    Box::pin(StreamReader::new(response.bytes_stream().map_err(std::io::Error::other)))
}

fn parse<T: DeserializeOwned>(body: Bytes) -> Answer<T> {
    let body = if body.is_empty() { Bytes::from_static(b"null") } else { body };
    serde_json::from_slice(&body).map_err(|_| Failure::Unfit("the container engine's answer is not what its API promises"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_by_number() {
        let version = |text| ApiVersion::parse(text).unwrap();
        assert!(version("1.9") < version("1.41") && version("1.47") < version("2.0"));
        assert_eq!(ApiVersion::parse("1"), None);
    }

    #[tokio::test]
    async fn a_trace_goes_on_to_the_engine() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let engine = Engine::new(&Address::Unix("/nowhere".into()), None).unwrap();
        *engine.about.lock().unwrap() = Some(About { version: NEWEST, architecture: String::new(), is_podman: false });
        let sent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let asked = trace::within(trace::Traceparent::parse(sent), engine.request(Method::GET, "/info", &[])).await;
        assert_eq!(asked.unwrap_or_else(|_| panic!("a request")).build().unwrap().headers()["traceparent"], sent);
    }

    #[test]
    fn an_engines_words_are_never_shown() {
        let failure = Failure::Status(StatusCode::INTERNAL_SERVER_ERROR, "secret words".to_owned());
        let error = ProviderError::from(failure);
        assert!(!format!("{error} {error:?}").contains("secret"));
        let full = Failure::Status(StatusCode::INTERNAL_SERVER_ERROR, "write x: no space left on device".to_owned());
        assert_eq!(ProviderError::from(full).kind, Kind::Full);
    }
}
