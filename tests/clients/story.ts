// The demo's story, told with the types that openapi-typescript generates. Arguments: URL, key, data directory.

import { rmSync } from "node:fs";
import createClient from "openapi-fetch";
import type { components, paths } from "./berth.js";

const [url, key, data] = process.argv.slice(2) as [string, string, string];
const as = (token: string) => createClient<paths>({ baseUrl: url, headers: { Authorization: `Bearer ${token}` } });
const berth = as(key);

type Told<T> = { data?: T; error?: components["schemas"]["Problem"]; response: Response };

/** The body of an answer that must have this status. */
function told<T>({ data, error, response }: Told<T>, status: number): T {
  if (response.status !== status) throw new Error(`${response.url}: ${response.status} ${JSON.stringify(error)}`);
  return data as T;
}

function refused({ error, response }: Told<unknown>, status: number, code: string) {
  hold(response.status === status && error?.code === code, `${response.status} ${JSON.stringify(error)}`);
}

function hold(holds: boolean | undefined, otherwise: string) {
  if (holds !== true) throw new Error(otherwise);
}

const acquire = (holder: string) =>
  berth.POST("/v1/leases", { body: { environment: "default", holder, scope: { client: "typescript" } } });
const under = (id: string) => ({ params: { path: { id } } });

const lease = told(await acquire("run-1"), 201);
const mine = as(lease.token ?? "");
hold(told(await acquire("run-1"), 200).id === lease.id, "the same holder has the same lease");
refused(await acquire("run-2"), 409, "lease_conflict");

const ran = told(await mine.POST("/v1/leases/{id}/exec", { ...under(lease.id), body: { script: "echo hello; exit 3" } }), 200);
hold(ran.exit_code === 3 && ran.stdout === "hello\n", JSON.stringify(ran));
const file = { params: { path: { id: lease.id }, query: { path: "notes.txt" } } };
told(await mine.PUT("/v1/leases/{id}/files", { ...file, body: "remember me", bodySerializer: (body) => body }), 201);
hold(told(await mine.GET("/v1/leases/{id}/files", { ...file, parseAs: "text" }), 200) === "remember me", "the file comes back");

const saved = told(await mine.POST("/v1/leases/{id}/checkpoints", { ...under(lease.id), body: {} }), 201);
hold(saved.current, "the checkpoint is the current one");
told(await mine.POST("/v1/leases/{id}/release", { ...under(lease.id), body: { outcome: "succeeded" } }), 200);

const second = told(await acquire("run-2"), 201);
hold(second.acquisition?.outcome === "resumed", JSON.stringify(second.acquisition));
rmSync(`${data}/local/instances/${second.instance_id}`, { recursive: true });
const next = as(second.token ?? "");
refused(await next.POST("/v1/leases/{id}/exec", { ...under(second.id), body: { command: "true" } }), 409, "instance_lost");
const header = { "Berth-Generation": second.generation };
const recovered = told(await berth.POST("/v1/leases/{id}/recover", { params: { path: { id: second.id }, header }, body: {} }), 200);
hold(recovered.acquisition?.restored_from?.checkpoint_id === saved.id, JSON.stringify(recovered.acquisition));
const again = { params: { path: { id: second.id }, query: { path: "notes.txt" } }, parseAs: "text" as const };
hold(told(await as(recovered.token ?? "").GET("/v1/leases/{id}/files", again), 200) === "remember me", "the file came back");

told(await berth.DELETE("/v1/leases/{id}", under(second.id)), 204);
hold(told(await berth.GET("/v1/leases/{id}", under(second.id)), 200).status === "released", "it is over");
console.log("typescript: every step held");
