-- Up to which write the work may go unsaved, since somebody rolled the pointer back to nothing.
ALTER TABLE sandbox ADD COLUMN given_up_seq INTEGER NOT NULL DEFAULT 0;
