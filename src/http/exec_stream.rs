//! Commands whose output is sent as it is written; a slow reader slows the command.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use axum::Extension;
use axum::body::{Body as RawBody, Bytes};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use tokio::time::Instant;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::answer::{Answer, about, fenced};
use super::body::Body;
use super::extract::{Authenticated, Fence, Id};
use super::layers::RequestId;
use super::problem::Problem;
use super::wire::exec::ExecRun;
use super::wire::exec_stream::ExecStreamEvent;
use super::{Http, sse};
use crate::error::{Code, Error};
use crate::model::operation::Status;
use crate::model::resource::Kind;
use crate::ops::exec::Followed;
use crate::ops::listen::{Heard, Stream};
use crate::ops::output::whole_characters;
use crate::ops::streams::Open;
use crate::ops::view::ExecView;
use crate::ops::{self, Berth};

const NDJSON: &str = "application/x-ndjson";

/// The routes of this file.
pub fn routes() -> OpenApiRouter<Http> {
    OpenApiRouter::new().routes(routes!(run))
}

/// Run a command and follow it
///
/// The same request as `exec_run`, answered as lines of JSON or as server-sent events, by `Accept`: `start`, then `stdout` and `stderr`
/// as they are written, then `exit` or `error`; a heartbeat every 15 s. If the client leaves, the command is killed with its whole tree
/// unless `on_disconnect: keep`. Its output is also kept, as that of any command.
#[utoipa::path(post, path = "/v1/leases/{id}/exec/stream", operation_id = "exec_stream", tag = "exec",
    params(("id" = uuid::Uuid, Path, description = "The lease."), Fence), request_body = ExecRun,
    responses((status = 200, description = "The command runs; each line is one event.", content(
        (ExecStreamEvent = "application/x-ndjson"),
        (String = "text/event-stream", example = json!("event: start\ndata: {\"type\":\"start\",\"id\":\"0199c5c8-7d5e-7a41-9d2f-3a1b5c7d9e09\"}\n\n"))))),
    extensions(("x-error-codes" = json!([
        "not_acceptable", "quota_exceeded", "read_only_lease", "capability_not_granted", "lease_not_active", "lease_expired", "lease_taken_over",
        "stale_generation", "generation_required", "instance_lost", "instance_not_running", "capture_in_progress",
        "transition_in_progress", "rotation_in_progress", "resume_failed", "resume_unavailable", "operation_unknown", "invalid_path",
        "provider_error", "provider_unavailable", "provider_timeout", "storage_full"
    ]))))]
async fn run(
    State(berth): State<Arc<Berth>>,
    Authenticated(caller): Authenticated,
    Id(id): Id,
    fence: Fence,
    Extension(request): Extension<RequestId>,
    headers: HeaderMap,
    Body(wanted): Body<ExecRun>,
) -> Answer {
    let form = Form::wanted(&headers)?;
    let base64 = wanted.output_encoding.as_deref() == Some("base64");
    let open = berth.streams.open(caller.credential.id())?;
    let followed = ops::exec::follow(&berth, &caller, id, wanted.input(fence)).await?;
    let row = followed.operation.clone();
    let start = form.line(&ExecStreamEvent::start(row.id));
    let path = format!("/v1/leases/{id}/exec/stream");
    let telling = Telling {
        berth,
        followed,
        form,
        base64,
        path,
        request: request.0,
        seq: 0,
        torn: [Vec::new(), Vec::new()],
        ready: VecDeque::from([start]),
        beat: Instant::now() + sse::HEARTBEAT,
        over: false,
        _open: open,
    };
    // Dropped with the body when the client leaves, and with it the command.
    let body = RawBody::from_stream(stream::unfold(telling, |mut telling| async move {
        let next = telling.next().await?;
        Some((next, telling))
    }));
    Ok(about(fenced(form.answer(body), Some(row.generation), Some(row.epoch)), Kind::Exec, row.id))
}

/// A settled command again, from what is kept of it.
pub fn replay(view: &ExecView, headers: &HeaderMap, base64: bool) -> Result<Response, Problem> {
    let form = Form::wanted(headers)?;
    let row = &view.operation;
    match row.status {
        Status::Running => return Err(Problem::new(Code::IdempotencyKeyInUse, "The command is still running.")),
        Status::Unknown | Status::Lost => return Err(unknown().into()),
        Status::Exited | Status::TimedOut | Status::Cancelled => {}
    }
    let mut lines = vec![form.line(&ExecStreamEvent::start(row.id))];
    for (seq, (name, output)) in (1..).zip([("stdout", &view.stdout), ("stderr", &view.stderr)]) {
        if !output.kept.is_empty() {
            lines.push(form.line(&ExecStreamEvent::wrote(name, seq, &output.kept, base64)));
        }
    }
    lines.push(form.line(&ExecStreamEvent::exit(view)));
    Ok(fenced(form.answer(RawBody::from(lines.concat())), Some(row.generation), Some(row.epoch)))
}

fn unknown() -> Error {
    Error::new(Code::OperationUnknown, "The command's end was not seen; it may have run.")
}

/// In which form the lines are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Lines,
    Events,
}

impl Form {
    /// What the caller accepts first of the two; lines of JSON if it does not say.
    fn wanted(headers: &HeaderMap) -> Result<Self, Problem> {
        let Some(accept) = headers.get(ACCEPT) else { return Ok(Self::Lines) };
        let accept = accept.to_str().unwrap_or_default();
        let types = accept.split(',').map(|range| range.split(';').next().unwrap_or_default().trim().to_ascii_lowercase());
        let form = types.into_iter().find_map(|range| match range.as_str() {
            "*/*" | "application/*" | NDJSON => Some(Self::Lines),
            "text/*" | sse::MEDIA_TYPE => Some(Self::Events),
            _ => None,
        });
        form.ok_or_else(|| Problem::new(Code::NotAcceptable, "This is answered as application/x-ndjson or as text/event-stream."))
    }

    fn answer(self, body: RawBody) -> Response {
        let media_type = if self == Self::Lines { NDJSON } else { sse::MEDIA_TYPE };
        ([(CONTENT_TYPE, media_type)], body).into_response()
    }

    fn line(self, event: &ExecStreamEvent) -> Bytes {
        match self {
            Self::Events if event.type_ == "heartbeat" => sse::heartbeat(None),
            Self::Events => sse::event(event.seq, event.type_, event),
            Self::Lines => Bytes::from(serde_json::to_string(event).unwrap_or_default() + "\n"),
        }
    }
}

/// A command being told. It takes more from the command only when its client has taken what was told.
struct Telling {
    berth: Arc<Berth>,
    followed: Followed,
    form: Form,
    base64: bool,
    path: String,
    request: String,
    seq: i64,
    /// The beginnings of characters whose rest was not written yet, of each stream.
    torn: [Vec<u8>; 2],
    ready: VecDeque<Bytes>,
    beat: Instant,
    over: bool,
    _open: Open,
}

impl Telling {
    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            if let Some(line) = self.ready.pop_front() {
                self.beat = Instant::now() + sse::HEARTBEAT;
                return Some(Ok(line));
            }
            if self.over {
                return None;
            }
            tokio::select! {
                heard = self.followed.follow.heard.recv() => match heard {
                    Some(Heard::Wrote(stream, bytes)) => self.wrote(stream, &bytes),
                    Some(Heard::Started) => {}
                    None => {
                        self.over = true;
                        if !self.followed.follow.is_whole() {
                            // Output is missing, so neither an exit nor a clean end may be seen.
                            return Some(Err(io::Error::other("the reader was given up")));
                        }
                        self.tell_end().await;
                    }
                },
                () = tokio::time::sleep_until(self.beat) => self.ready.push_back(self.form.line(&ExecStreamEvent::heartbeat())),
            }
        }
    }

    fn wrote(&mut self, stream: Stream, bytes: &[u8]) {
        let at = usize::from(stream == Stream::Stderr);
        let mut all = std::mem::take(&mut self.torn[at]);
        all.extend_from_slice(bytes);
        if !self.base64 {
            self.torn[at] = all.split_off(whole_characters(&all));
        }
        self.tell(at, &all);
    }

    fn tell(&mut self, at: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.seq += 1;
        let event = ExecStreamEvent::wrote(["stdout", "stderr"][at], self.seq, bytes, self.base64);
        self.ready.push_back(self.form.line(&event));
    }

    async fn tell_end(&mut self) {
        for at in 0..self.torn.len() {
            let rest = std::mem::take(&mut self.torn[at]);
            self.tell(at, &rest);
        }
        let problem = match self.followed.end(&self.berth).await {
            Ok(view) if matches!(view.operation.status, Status::Exited | Status::TimedOut | Status::Cancelled) => {
                self.ready.push_back(self.form.line(&ExecStreamEvent::exit(&view)));
                return;
            }
            Ok(_) => Problem(unknown()),
            Err(error) => Problem(error),
        };
        let event = ExecStreamEvent::error(problem.body(&self.path, &self.request));
        self.ready.push_back(self.form.line(&event));
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn the_form_is_the_callers_choice() {
        let wanted = |accept: &'static str| {
            let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(accept))]);
            Form::wanted(&headers).map_err(|problem| problem.0.code)
        };
        assert_eq!(wanted("text/event-stream"), Ok(Form::Events));
        assert_eq!(wanted("image/png, application/x-ndjson;q=0.5"), Ok(Form::Lines));
        assert_eq!(wanted("*/*"), Ok(Form::Lines));
        assert_eq!(wanted("image/png"), Err(Code::NotAcceptable));
        assert_eq!(Form::wanted(&HeaderMap::new()).unwrap(), Form::Lines);
    }
}
