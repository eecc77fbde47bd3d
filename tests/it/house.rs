//! The house keeps its rules: doors between rooms, file sizes, names, one schema on both databases.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::harness::{Db, World};

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

fn all_sources() -> Vec<PathBuf> {
    let mut found = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    found.sort();
    assert!(found.len() > 40);
    found
}

fn room(path: &Path) -> String {
    let inside = path.strip_prefix(Path::new(env!("CARGO_MANIFEST_DIR")).join("src")).unwrap();
    let first = inside.components().next().unwrap().as_os_str().to_str().unwrap();
    first.trim_end_matches(".rs").to_owned()
}

/// Which rooms each room may enter. `clock`, `error`, `id` and `trace` are open to all; `app`, `main` and `lib` know everything.
fn doors() -> BTreeMap<&'static str, &'static [&'static str]> {
    BTreeMap::from([
        ("model", &[][..]),
        ("archive", &[]),
        ("store", &["model"]),
        ("provider", &["model", "archive"]),
        ("ops", &["model", "store", "provider", "archive"]),
        ("background", &["ops"]),
        ("http", &["ops", "model", "telemetry", "shutdown"]),
        ("cli", &["app", "config", "http", "ops", "provider", "model", "telemetry", "shutdown", "store"]),
        ("config", &["ops"]),
        ("telemetry", &["config"]),
        ("shutdown", &[]),
        ("clock", &[]),
        ("error", &[]),
        ("id", &[]),
        ("trace", &[]),
    ])
}

#[test]
fn rooms_keep_their_doors() {
    let doors = doors();
    let mut wrong = Vec::new();
    for path in all_sources() {
        let room = room(&path);
        if ["app", "main", "lib"].contains(&room.as_str()) {
            continue;
        }
        let allowed = doors.get(room.as_str()).unwrap_or_else(|| panic!("{room} has no doors yet: say which it may enter"));
        let text = std::fs::read_to_string(&path).unwrap();
        for (number, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("//") {
                continue;
            }
            for (at, _) in line.match_indices("crate::") {
                let before = line[..at].chars().next_back();
                let word: String = line[at + 7..].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                let free = ["clock", "error", "id", "trace", room.as_str(), "text_enum", ""].contains(&word.as_str());
                if before != Some('$') && !free && !allowed.contains(&word.as_str()) {
                    wrong.push(format!("{}:{}: {room} enters {word}", path.display(), number + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn files_have_a_sentence_and_are_small() {
    let mut wrong = Vec::new();
    for path in all_sources() {
        let text = std::fs::read_to_string(&path).unwrap();
        if !text.starts_with("//! ") {
            wrong.push(format!("{} does not say what it is", path.display()));
        }
        if text.lines().count() > 500 {
            wrong.push(format!("{} has more than 500 lines: two rooms", path.display()));
        }
        let name = path.file_stem().unwrap().to_str().unwrap();
        if ["util", "utils", "helper", "helpers", "common", "manager", "misc"].contains(&name) {
            wrong.push(format!("{} has no name of its own", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn tables(sql: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut tables = BTreeMap::new();
    let mut table: Option<(String, BTreeSet<String>)> = None;
    for line in sql.lines() {
        if let Some(rest) = line.strip_prefix("CREATE TABLE ") {
            table = Some((rest.trim_end_matches(" (").to_owned(), BTreeSet::new()));
        } else if line.starts_with(')') {
            tables.extend(table.take());
        } else if let Some((_, columns)) = &mut table {
            let word = line.split_whitespace().next().unwrap_or_default();
            if word.chars().next().is_some_and(char::is_lowercase) {
                columns.insert(word.to_owned());
            }
        }
    }
    tables
}

fn named(sql: &str, what: &str) -> BTreeSet<String> {
    sql.lines().filter_map(|l| l.strip_prefix(what)).filter_map(|l| l.split_whitespace().next().map(str::to_owned)).collect()
}

#[test]
fn both_databases_have_one_schema() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
    let names = |dir: &str| -> BTreeSet<String> {
        std::fs::read_dir(root.join(dir)).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    };
    assert_eq!(names("sqlite"), names("postgres"), "the same migrations");
    for name in names("sqlite") {
        let sqlite = std::fs::read_to_string(root.join("sqlite").join(&name)).unwrap();
        let postgres = std::fs::read_to_string(root.join("postgres").join(&name)).unwrap();
        assert_eq!(tables(&sqlite), tables(&postgres), "{name}: the same tables and columns");
        for index in ["CREATE UNIQUE INDEX ", "CREATE INDEX "] {
            assert_eq!(named(&sqlite, index), named(&postgres, index), "{name}: the same indexes");
        }
    }
}

#[tokio::test]
async fn several_processes_may_migrate_at_once() {
    let world = World::new(Db::Postgres).await;
    let (url, _server, _name) = crate::harness::fresh_postgres().await;
    let migrate = |_| async {
        let store = berth::store::Store::connect(&url, 2).await.unwrap();
        store.migrate().await.unwrap();
        store.pending_migrations().await.unwrap()
    };
    for pending in futures_util::future::join_all((0..6).map(migrate)).await {
        assert!(pending.is_empty());
    }
    drop(world);
}

/// The statements of a migration, without comments.
fn statements(sql: &str) -> Vec<String> {
    let code: Vec<&str> = sql.lines().filter(|line| !line.trim_start().starts_with("--")).collect();
    code.join(" ").split(';').map(|statement| statement.trim().to_owned()).filter(|statement| !statement.is_empty()).collect()
}

/// Whether servers that do not know of a change go on beside one that made it.
fn only_adds(statement: &str) -> bool {
    let column = statement.strip_prefix("ALTER TABLE ").and_then(|rest| rest.split_once(" ADD COLUMN "));
    let harmless = ["CREATE TABLE ", "CREATE INDEX ", "CREATE UNIQUE INDEX ", "DROP INDEX "];
    harmless.iter().any(|begins| statement.starts_with(begins))
        || column.is_some_and(|(_, column)| !column.contains("NOT NULL") || column.contains(" DEFAULT "))
}

#[test]
fn a_migration_only_adds_so_that_servers_of_the_version_before_go_on_beside_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations");
    for dir in ["sqlite", "postgres"] {
        for entry in std::fs::read_dir(root.join(dir)).unwrap() {
            let path = entry.unwrap().path();
            for statement in statements(&std::fs::read_to_string(&path).unwrap()) {
                let first = path.file_name().unwrap().to_str().unwrap().starts_with("0001_");
                assert!(first || only_adds(&statement), "{}: {statement}", path.display());
            }
        }
    }
    for breaking in ["ALTER TABLE lease DROP COLUMN holder", "ALTER TABLE lease ADD COLUMN new TEXT NOT NULL", "DROP TABLE claim"] {
        assert!(!only_adds(breaking), "{breaking}");
    }
}
