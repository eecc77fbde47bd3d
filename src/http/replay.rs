//! Replays: the resource that a finished request was about, as it is now.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use super::answer::{self, made};
use super::idempotency::{Asked, outer_id};
use super::problem::Problem;
use super::wire::checkpoint::Checkpoint;
use super::wire::environment::Environment;
use super::wire::file::FileChanged;
use super::wire::plugin::Plugin;
use super::wire::sandbox::Sandbox;
use super::wire::service::{ApiKeySecret, Organization};
use crate::model::checkpoint::Status as CheckpointStatus;
use crate::model::lease::Status as LeaseStatus;
use crate::model::resource::Kind;
use crate::ops::idempotency::Kept;
use crate::ops::view::Answered;
use crate::ops::{self, Berth};

/// The answer that was kept: its status, and what it was about.
pub async fn render(berth: &Arc<Berth>, asked: &Asked<'_>, kept: &Kept) -> Result<Response, Problem> {
    let Some(resource) = kept.resource else {
        let status = StatusCode::from_u16(kept.status).unwrap_or(StatusCode::OK);
        return Ok(match &kept.answer {
            Some(answer) => (status, Json(answer)).into_response(),
            None => status.into_response(),
        });
    };
    let (caller, id) = (asked.caller, resource.id);
    Ok(match resource.kind {
        Kind::Lease => {
            let mut view = ops::lease::get(berth, caller, id, Duration::ZERO).await?;
            // The same token as the first time: one that a take-over has fenced off since stays fenced off.
            let epoch = kept.answer.as_ref().and_then(|answer| answer["epoch"].as_i64()).unwrap_or(1);
            let hands_out = !asked.path.ends_with("/release") && !asked.path.ends_with("/resume");
            view.token = hands_out.then(|| berth.token_at(&view.lease, epoch));
            answer::lease(&view, how(kept.status, view.lease.status == LeaseStatus::Pending))
        }
        Kind::Exec => {
            let mut view = ops::exec::get(berth, caller, outer_id(asked.path), id, Duration::ZERO).await?;
            view.base64 = serde_json::from_slice::<Value>(asked.body).is_ok_and(|body| body["output_encoding"] == "base64");
            if asked.path.ends_with("/exec/stream") {
                return super::exec_stream::replay(&view, asked.headers, view.base64);
            }
            let runs = view.operation.status == crate::model::operation::Status::Running;
            super::exec::answer(&view, how(kept.status, runs))
        }
        Kind::File => Json(FileChanged { workspace_seq: ops::idempotency::workspace_seq(berth, caller, id).await? }).into_response(),
        Kind::Checkpoint => {
            let row = ops::idempotency::checkpoint(berth, caller, id).await?;
            let location = format!("/v1/sandboxes/{}/checkpoints/{}", row.sandbox_id, row.id);
            made(how(kept.status, row.status == CheckpointStatus::Capturing), &location, Checkpoint::of(&row))
        }
        Kind::Sandbox => {
            let view = ops::sandbox::get(berth, caller, id, Duration::ZERO).await?;
            made(how(kept.status, false), &format!("/v1/sandboxes/{id}"), Sandbox::of(&view))
        }
        Kind::Environment => {
            let environment = ops::environment::get(berth, caller, &id.to_string()).await?;
            made(how(kept.status, false), &format!("/v1/environments/{id}"), Environment::of(&environment))
        }
        Kind::Organization => {
            let (name, created_at) = ops::keys::organization(berth, caller, id).await?;
            made(how(kept.status, false), &format!("/v1/organizations/{id}"), Organization { id, name, created_at })
        }
        Kind::Plugin => {
            let plugin = ops::plugins::get(berth, caller, id).await?;
            made(how(kept.status, false), &format!("/v1/plugins/{id}"), Plugin::of(&plugin))
        }
        Kind::ApiKey => {
            let key = ops::keys::get(berth, caller, id).await?;
            made(how(kept.status, false), &format!("/v1/api-keys/{id}"), ApiKeySecret::of(key, None))
        }
    })
}

/// As it was answered, except that what went on then may be over now.
fn how(status: u16, goes_on: bool) -> Answered {
    match status {
        _ if goes_on => Answered::Pending,
        201 => Answered::Created,
        _ => Answered::Existing,
    }
}
