-- Until when outages of the database are made up for: written by nothing else, so that no server that met none hides one.
ALTER TABLE deployment ADD COLUMN made_up_until BIGINT;
