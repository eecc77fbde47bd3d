-- When any server last said that it can write: no outage began before.
ALTER TABLE deployment ADD COLUMN alive_at INTEGER;
