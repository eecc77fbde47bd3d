//! Receipts of native snapshots: told from a tar by their content, stored as they are, believed of exactly the snapshot they name.

use berth::archive::receipt::{Origin, Receipt};
use berth::error::Code;
use berth::model::checkpoint::Kind as CheckpointKind;

use super::*;
use crate::both;
use crate::harness::code;

both! {
    async fn a_receipt_is_uploaded_and_recorded_for_its_own_snapshot_only(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        for origin in [Origin::E2b, Origin::ModalDirectory, Origin::ModalFilesystem, Origin::Runloop, Origin::Vercel] {
            let receipt = Receipt { origin, snapshot_id: format!("snap-{}", origin.as_str()), workspace_persistence: None };
            let stored = upload(&world, &lease, receipt.to_bytes()).await.unwrap();
            assert!(stored.workspace_revision.starts_with("wa2:") && stored.tree.is_none());
            assert_eq!(stored.size_bytes, i64::try_from(receipt.to_bytes().len()).unwrap());
            let mut input = entry(&lease, CheckpointKind::ProviderNative, &stored.workspace_revision);
            input.provider_ref = Some("another".to_owned());
            let told = record(&world, &lease, input.clone()).await.expect_err("not its own");
            assert_eq!((told.code, told.facts["integrity_code"].as_str()), (Code::CheckpointIntegrity, Some("native_snapshot_reference_invalid")));
            input.provider_ref = Some(receipt.snapshot_id.clone());
            let (made, new) = record(&world, &lease, input).await.unwrap();
            assert!(new && made.artifact_id.is_some() && made.tree.is_none());
            assert_eq!(made.archive_sha256, Some(stored.archive_sha256));
        }
    }

    async fn a_receipt_is_never_a_portable_checkpoint(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        let receipt = Receipt { origin: Origin::E2b, snapshot_id: "s".to_owned(), workspace_persistence: None };
        let stored = upload(&world, &lease, receipt.to_bytes()).await.unwrap();
        let portable = stored.workspace_revision.replace("wa2:", "wa1:");
        assert_eq!(code(record(&world, &lease, entry(&lease, CheckpointKind::PortableWorkspace, &portable)).await), Code::CheckpointUnavailable);
    }

    async fn what_is_not_exactly_a_receipt_is_a_tar_and_a_bad_one(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        for bytes in [
            &b"E2B_SANDBOX_SNAPSHOT_V1\n{\"snapshot_id\":\"\"}"[..],
            b"E2B_SANDBOX_SNAPSHOT_V1\n{\"snapshot_id\":\"s\"} ...",
            b"E2B_SANDBOX_SNAPSHOT_V1",
            b"",
        ] {
            assert_eq!(code(upload(&world, &lease, bytes.to_vec()).await), Code::ArchiveInvalid, "{}", bytes.escape_ascii());
        }
        let contradictory = Receipt {
            origin: Origin::ModalDirectory,
            snapshot_id: "im".to_owned(),
            workspace_persistence: Some("snapshot_filesystem".to_owned()),
        };
        assert_eq!(code(upload(&world, &lease, contradictory.to_bytes()).await), Code::CheckpointIntegrity);
        assert_eq!(objects(&world).await, 0);
    }

    async fn a_tar_whose_first_entry_looks_like_a_receipt_is_a_tar(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        world.put(&lease, "E2B_SANDBOX_SNAPSHOT_V1", "not one").await.unwrap();
        let saved = world.capture(&lease).await.unwrap();
        let stored = upload(&world, &lease, fetched(&world, &saved).await).await.unwrap();
        assert_eq!(stored.tree.map(|t| t.digest), saved.tree.map(|t| t.digest.clone()));
        assert!(stored.workspace_revision.starts_with("wa1:"));
    }

    async fn only_the_receipt_goes_when_its_row_goes(world) {
        let lease = world.acquire("run", "s").await.unwrap();
        let receipt = Receipt { origin: Origin::Runloop, snapshot_id: "s".to_owned(), workspace_persistence: None };
        let stored = upload(&world, &lease, receipt.to_bytes()).await.unwrap();
        let mut input = entry(&lease, CheckpointKind::ProviderNative, &stored.workspace_revision);
        input.provider_ref = Some("s".to_owned());
        let (made, _) = record(&world, &lease, input).await.unwrap();
        let destroyed = world.faults.count(berth::provider::faults::Verb::Destroy);
        ops::collect::delete(&world.berth, &world.caller, lease.lease.sandbox_id, made.id).await.unwrap();
        ops::collect::delete_artifacts(&world.berth).await.unwrap();
        assert_eq!((objects(&world).await, world.faults.count(berth::provider::faults::Verb::Destroy)), (0, destroyed));
    }
}
