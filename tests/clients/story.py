"""The demo's story, told by the client that openapi-python-client generates. Arguments: URL, key, data directory."""

import io
import shutil
import sys
from pathlib import Path

from berth_client import AuthenticatedClient
from berth_client.api.checkpoints import archive_download, checkpoint_capture, checkpoint_current
from berth_client.api.events import events_list
from berth_client.api.exec_ import exec_run
from berth_client.api.files import file_read, file_write
from berth_client.api.instances import instance_list
from berth_client.api.leases import lease_acquire, lease_delete, lease_get, lease_list, lease_recover, lease_release
from berth_client.models import CheckpointCapture, ExecRun, LeaseAcquire, LeaseRecover, LeaseRelease, Scope
from berth_client.types import File

url, key, data = sys.argv[1], sys.argv[2], Path(sys.argv[3])
berth = AuthenticatedClient(base_url=url, token=key)


def told(answer, status):
    """The body of an answer that must have this status."""
    assert answer.status_code == status, (answer.status_code, answer.content)
    return answer.parsed


def acquire(holder):
    scope = Scope.from_dict({"client": "python"})
    return lease_acquire.sync_detailed(client=berth, body=LeaseAcquire(environment="default", holder=holder, scope=scope))


lease = told(acquire("run-1"), 201)
mine = AuthenticatedClient(base_url=url, token=lease.token)
assert told(acquire("run-1"), 200).id == lease.id
refused = acquire("run-2")
assert (refused.status_code, refused.parsed.code) == (409, "lease_conflict"), refused.content

ran = told(exec_run.sync_detailed(lease.id, client=mine, body=ExecRun(script="echo hello; exit 3")), 200)
assert (ran.exit_code, ran.stdout) == (3, "hello\n"), ran
content = bytes(range(256))
written = told(file_write.sync_detailed(lease.id, client=mine, path="notes.bin", body=File(payload=io.BytesIO(content))), 201)
assert written.created
assert told(file_read.sync_detailed(lease.id, client=mine, path="notes.bin"), 200).payload.read() == content
missing = file_read.sync_detailed(lease.id, client=mine, path="nothing")
assert (missing.status_code, missing.parsed.code) == (404, "file_not_found")

saved = told(checkpoint_capture.sync_detailed(lease.id, client=mine, body=CheckpointCapture()), 201)
assert saved.current and told(checkpoint_current.sync_detailed(lease.sandbox_id, client=mine), 200).id == saved.id
archive = told(archive_download.sync_detailed(lease.sandbox_id, saved.id, client=mine), 200)
assert b"notes.bin" in archive.payload.read()
told(lease_release.sync_detailed(lease.id, client=mine, body=LeaseRelease(outcome="succeeded")), 200)

second = told(acquire("run-2"), 201)
assert (second.acquisition.outcome, second.sandbox_id) == ("resumed", lease.sandbox_id)
shutil.rmtree(data / "local" / "instances" / str(second.instance_id))
lost = exec_run.sync_detailed(second.id, client=AuthenticatedClient(base_url=url, token=second.token), body=ExecRun(command="true"))
assert (lost.status_code, lost.parsed.code) == (409, "instance_lost"), lost.content
recovered = told(lease_recover.sync_detailed(second.id, client=berth, body=LeaseRecover(), berth_generation=second.generation), 200)
assert recovered.generation == second.generation + 1
assert recovered.acquisition.restored_from.checkpoint_id == saved.id
mine = AuthenticatedClient(base_url=url, token=recovered.token)
assert told(file_read.sync_detailed(second.id, client=mine, path="notes.bin"), 200).payload.read() == content

assert lease_delete.sync_detailed(second.id, client=berth).status_code == 204
assert told(lease_get.sync_detailed(second.id, client=berth), 200).status == "released"
assert {item.id for item in told(lease_list.sync_detailed(client=berth, holder="run-2"), 200).items} == {second.id}
assert told(instance_list.sync_detailed(client=berth, status="running"), 200).items == []
assert any(event.type_ == "instance.lost" for event in told(events_list.sync_detailed(client=berth, limit=100), 200).items)
print("python: every step held")
