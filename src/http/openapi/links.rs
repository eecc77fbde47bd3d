//! Links: which operations go on from what an answer names, for readers and for tools that walk the API.

use utoipa::openapi::RefOr;
use utoipa::openapi::link::{Link, LinkBuilder};
use utoipa::openapi::path::Operation;

use super::content_component;

/// A parameter of the next operation, and where the answer says its value.
type Given = (&'static str, &'static str);

const LEASE: &[Given] = &[("id", "$response.body#/id")];
const WRITE: &[Given] = &[("id", "$response.body#/id"), ("Berth-Generation", "$response.body#/generation")];
const SANDBOX_OF: &[Given] = &[("id", "$response.body#/sandbox_id")];
const ID: &[Given] = &[("id", "$response.body#/id")];
const CHECKPOINT: &[Given] = &[("id", "$response.body#/sandbox_id"), ("checkpoint_id", "$response.body#/id")];
const EXEC: &[Given] = &[("id", "$request.path.id"), ("exec_id", "$response.body#/id")];

/// An operation, and what it is given.
type Next = (&'static str, &'static [Given]);

/// What goes on from a component, and how.
const LINKS: &[(&str, &[Next])] = &[
    (
        "Lease",
        &[
            ("lease_get", LEASE),
            ("lease_renew", LEASE),
            ("lease_explain", LEASE),
            ("exec_run", WRITE),
            ("file_list", LEASE),
            ("file_write", WRITE),
            ("file_mkdir", WRITE),
            ("checkpoint_capture", WRITE),
            ("lease_recover", WRITE),
            ("lease_release", LEASE),
            ("lease_delete", LEASE),
            ("sandbox_get", SANDBOX_OF),
        ],
    ),
    (
        "Sandbox",
        &[("sandbox_get", ID), ("sandbox_explain", ID), ("checkpoint_list", ID), ("checkpoint_current", ID), ("sandbox_delete", ID)],
    ),
    ("Checkpoint", &[("checkpoint_get", CHECKPOINT), ("archive_download", CHECKPOINT), ("checkpoint_delete", CHECKPOINT)]),
    ("Exec", &[("exec_get", EXEC), ("exec_cancel", EXEC)]),
    ("Environment", &[("environment_get", ID), ("environment_probe", ID), ("environment_update", ID), ("environment_delete", ID)]),
    ("ApiKeySecret", &[("api_key_rotate", ID), ("api_key_revoke", ID)]),
    ("Organization", &[("organization_delete", ID)]),
];

/// Says in each answer that is one of these components what can be done next.
pub fn add(operation: &mut Operation) {
    let own = operation.operation_id.clone();
    for (status, response) in &mut operation.responses.responses {
        let RefOr::T(response) = response else { continue };
        let component = response.content.values().find_map(content_component);
        let found = LINKS.iter().find(|(name, _)| status.starts_with('2') && component.as_deref() == Some(*name));
        for (next, given) in found.iter().flat_map(|(_, links)| links.iter()).filter(|(next, _)| own.as_deref() != Some(*next)) {
            response.links.insert((*next).to_owned(), RefOr::T(link(next, given)));
        }
    }
}

fn link(operation: &str, given: &[Given]) -> Link {
    given.iter().fold(LinkBuilder::new().operation_id(operation), |link, (name, value)| link.parameter(*name, *value)).build()
}
