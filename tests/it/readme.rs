//! The README tells the truth: its story works as pasted, and its table has every setting.

use std::process::Stdio;

use tokio::process::Command;

use crate::harness::Db;
use crate::harness::server::Site;

fn readme() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_story_with_curl_works_as_pasted() {
    let readme = readme();
    let story = readme.split("<!-- story -->\n```sh\n").nth(1).unwrap().split("```").next().unwrap();
    let site = Site::new(Db::Sqlite).await;
    let server = site.serve_as_a_newcomer().await;
    // Pasted, with a refusal of any line made a failure.
    let strict = "set -euo pipefail\ncurl() { command curl --noproxy '*' --fail-with-body \"$@\"; }\n";
    let pasted = format!("{strict}{}", story.replace("http://127.0.0.1:7070", &server.url));
    let mut bash = Command::new("bash");
    bash.arg("-c").arg(pasted).current_dir(site.data().parent().unwrap()).stdin(Stdio::null()).kill_on_drop(true);
    let told = bash.output().await.unwrap();
    let (out, err) = (String::from_utf8_lossy(&told.stdout), String::from_utf8_lossy(&told.stderr));
    assert!(told.status.success(), "{out}\n{err}");
    for expected in ["\"outcome\":\"created\"", "hello from Linux", "\nremember me\n", "\"current\":true", "\"status\":\"released\""] {
        assert!(out.contains(expected), "{expected} is not in: {out}");
    }
    assert!(out.contains("\"stdout\":\"remember me\""), "the next run finds the file: {out}");
    assert!(out.ends_with("204\n"), "{out}");
    assert!(site.inventory().is_empty());
    assert_eq!(server.stop().await.code(), Some(0));
}

#[tokio::test]
async fn every_setting_is_in_the_table() {
    let help = Command::new(env!("CARGO_BIN_EXE_berth")).args(["serve", "--help"]).output().await.unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let settings: Vec<&str> = help.split("[env: ").skip(1).filter_map(|rest| rest.split([']', '=']).next()).collect();
    assert!(settings.len() > 10, "{help}");
    let readme = readme();
    for setting in settings {
        assert!(readme.contains(&format!("| `{setting}` |")), "{setting} is not in the README's table");
    }
}
