//! No archive, however made, writes outside its directory, panics, or passes for something it is not.

use proptest::prelude::*;

use super::super::ArchiveCode::{Invalid, Limit, Unsafe};
use super::super::{ArchiveCode, Existing, Limits};
use super::*;

fn checksum(tar: &mut [u8]) {
    tar[148..156].fill(b' ');
    let sum: u32 = tar[..512].iter().map(|&byte| u32::from(byte)).sum();
    tar[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

fn sized(field: &[u8; 12]) -> Vec<u8> {
    let mut tar = Tar::default().file("a", "").end();
    tar[124..136].copy_from_slice(field);
    checksum(&mut tar);
    tar
}

fn sparse_pax() -> Vec<u8> {
    Tar::default().pax(b'x', "GNU.sparse.major", b"1").file("a", "x").end()
}

fn hostile() -> Vec<(&'static str, Vec<u8>, ArchiveCode)> {
    let t = Tar::default;
    let with_tail = |tail: &[u8]| [t().file("a", "x").end(), tail.to_vec()].concat();
    vec![
        ("parent", t().file("../victim/file", "x").end(), Unsafe),
        ("parent inside", t().dir("a", 0o755).file("a/../../victim/file", "x").end(), Unsafe),
        ("parent directory", t().dir("..", 0o777).end(), Unsafe),
        ("parent link", t().symlink("../victim/link", "x").end(), Unsafe),
        ("absolute", t().file("/berth-hostile", "x").end(), Unsafe),
        ("absolute by pax", t().pax(b'x', "path", b"/berth-hostile").file("a", "x").end(), Unsafe),
        ("NUL by pax", t().pax(b'x', "path", b"a\0b").file("a", "x").end(), Unsafe),
        ("NUL by long name", t().entry(b'L', b"l", b"", 0, b"a\0b\0").file("a", "x").end(), Unsafe),
        ("NUL in target", t().pax(b'x', "linkpath", b"a\0b").symlink("a", "x").end(), Unsafe),
        ("hard link out", t().link("a", "../victim/file").end(), Unsafe),
        ("hard link to an absolute path", t().link("a", "/etc/passwd").end(), Unsafe),
        ("hard link to nothing", t().link("a", "b").end(), Unsafe),
        ("hard link to a later file", t().link("a", "b").file("b", "x").end(), Unsafe),
        ("hard link to a directory", t().dir("d", 0o755).link("a", "d").end(), Unsafe),
        ("hard link to a link", t().symlink("s", "../victim/file").link("a", "s").end(), Unsafe),
        ("hard link to itself", t().link("a", "a").end(), Unsafe),
        ("hard link to the root", t().link("a", ".").end(), Unsafe),
        ("through a link", t().symlink("s", "../victim").file("s/file", "x").end(), Unsafe),
        ("through a link to here", t().dir("d", 0o755).symlink("s", "d").file("s/file", "x").end(), Unsafe),
        ("directory through a link", t().symlink("s", "../victim").dir("s/new", 0o755).end(), Unsafe),
        ("link through a link", t().symlink("s", "../victim").symlink("s/new", "x").end(), Unsafe),
        ("hard link through a link", t().file("f", "x").symlink("s", "../victim").link("s/new", "f").end(), Unsafe),
        ("hard link from behind a link", t().symlink("s", "../victim").link("a", "s/file").end(), Unsafe),
        ("directory over a link", t().symlink("s", "../victim").dir("s", 0o700).file("s/file", "x").end(), Unsafe),
        ("link over a directory", t().dir("s", 0o755).symlink("s", "../victim").file("s/file", "x").end(), Unsafe),
        ("file over a link", t().symlink("s", "../victim/file").file("s", "x").end(), Unsafe),
        ("link over a file", t().file("s", "x").symlink("s", "../victim").end(), Unsafe),
        ("hard link over a directory", t().file("f", "x").dir("d", 0o755).link("d", "f").end(), Unsafe),
        ("directory over a file", t().file("s", "x").dir("s", 0o755).end(), Unsafe),
        ("below a file", t().file("s", "x").file("s/t", "x").end(), Unsafe),
        ("character device", t().entry(b'3', b"a", b"", 0o666, b"").end(), Unsafe),
        ("block device", t().entry(b'4', b"a", b"", 0o666, b"").end(), Unsafe),
        ("pipe", t().entry(b'6', b"a", b"", 0o666, b"").end(), Unsafe),
        ("volume label", t().entry(b'V', b"a", b"", 0o666, b"").end(), Unsafe),
        ("incremental dump", t().entry(b'D', b"a", b"", 0o666, b"").end(), Unsafe),
        ("unknown kind", t().entry(b'Z', b"a", b"", 0o666, b"").end(), Unsafe),
        ("root as a file", t().file(".", "x").end(), Unsafe),
        ("root as a link", t().symlink("./.", "../victim").end(), Unsafe),
        ("no bytes", Vec::new(), Invalid),
        ("not a tar", vec![b'x'; 2048], Invalid),
        ("a gzip", [&[0x1f, 0x8b, 8, 0][..], &[7; 2000]].concat(), Invalid),
        ("no end marker", t().file("a", "x").0, Invalid),
        (
            "half an end marker",
            {
                let mut tar = t().file("a", "x").end();
                tar.truncate(tar.len() - 512);
                tar
            },
            Invalid,
        ),
        ("junk after the end", with_tail(b"junk"), Invalid),
        ("a second tar after the end", with_tail(&t().file("b", "x").end()), Invalid),
        ("a lone zero block between", [t().file("a", "x").0, vec![0; 512], t().file("b", "x").end()].concat(), Invalid),
        ("endless zeros after the end", with_tail(&vec![0; 2 << 20]), Limit),
        (
            "damaged checksum",
            {
                let mut tar = t().file("a", "x").end();
                tar[0] = b'b';
                tar
            },
            Invalid,
        ),
        ("no name", t().file("", "x").end(), Invalid),
        ("empty target", t().symlink("a", "").end(), Invalid),
        ("directory with content", t().entry(b'5', b"a", b"", 0o755, b"x").end(), Invalid),
        ("slash with content", t().file("a/", "x").end(), Invalid),
        ("hard link with content", t().file("a", "x").entry(b'1', b"b", b"a", 0o644, b"x").end(), Invalid),
        ("GNU sparse", t().entry(b'S', b"a", b"", 0o644, b"x").end(), Invalid),
        ("PAX sparse", sparse_pax(), Invalid),
        ("two long names", t().entry(b'L', b"l", b"", 0, b"a\0").entry(b'L', b"l", b"", 0, b"b\0").file("c", "x").end(), Invalid),
        ("two pax headers", t().pax(b'x', "path", b"a").pax(b'x', "path", b"b").file("c", "x").end(), Invalid),
        ("long name and pax", t().entry(b'L', b"l", b"", 0, b"a\0").pax(b'x', "path", b"b").file("c", "x").end(), Invalid),
        ("pax for nobody", t().pax(b'x', "path", b"a").end(), Invalid),
        ("global path", t().pax(b'g', "path", b"a").file("b", "x").end(), Invalid),
        ("global size", t().pax(b'g', "size", b"0").file("b", "x").end(), Invalid),
        ("malformed pax", t().entry(b'x', b"p", b"", 0, b"99 path=a\n").file("b", "x").end(), Invalid),
        ("huge pax", t().entry(b'x', b"p", b"", 0, &vec![b'1'; 70_000]).file("b", "x").end(), Limit),
        ("huge long name", t().entry(b'L', b"l", b"", 0, &vec![b'a'; 70_000]).file("b", "x").end(), Limit),
        ("long path", t().file(&"d/".repeat(2049), "").end(), Limit),
        ("long name", t().file(&"n".repeat(256), "x").end(), Limit),
        ("long target", t().symlink("a", &"t".repeat(4096)).end(), Limit),
        ("negative size", sized(&[0xff; 12]), Limit),
        ("overflowing size", sized(&[0x80, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), Limit),
        ("largest size", sized(&[0x80, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]), Limit),
        ("size that is text", sized(b"not-a-number"), Limit),
        ("pax size that overflows", t().pax(b'x', "size", b"99999999999999999999").file("b", "").end(), Limit),
        ("pax size beyond the end", t().pax(b'x', "size", b"4096").file("b", "").end(), Invalid),
    ]
}

#[test]
fn every_hostile_archive_is_refused_with_its_code_and_writes_nothing_outside() {
    for (name, tar, expected) in hostile() {
        assert_eq!(digest(&tar).expect_err(name).code, expected, "{name}");
        for existing in [Existing::Empty, Existing::Merge] {
            let place = Place::new();
            let error = place.unpack(&tar, &Limits::default(), existing).expect_err(name);
            assert_eq!(error.code, expected, "{name}: {error}");
            place.assert_untouched();
        }
    }
    assert!(!std::path::Path::new("/berth-hostile").exists());
}

#[test]
fn links_already_in_the_workspace_are_never_written_through() {
    let place = Place::new();
    for name in ["a", "b", "c", "d"] {
        std::os::unix::fs::symlink("../victim", place.inner().join(name)).unwrap();
    }
    std::os::unix::fs::symlink("../victim/file", place.inner().join("e")).unwrap();
    let tar = Tar::default().file("a/file", "x").dir("b", 0o700).file("c", "x").file("f", "y").link("e", "f").symlink("d", "g").end();
    place.unpack(&tar, &Limits::default(), Existing::Merge).unwrap();
    place.assert_untouched();
    assert_eq!(std::fs::read(place.inner().join("a/file")).unwrap(), b"x");
    assert_eq!(std::fs::read(place.inner().join("e")).unwrap(), b"y");
    assert!(std::fs::symlink_metadata(place.inner().join("b")).unwrap().is_dir());
}

#[test]
fn a_merge_replaces_files_keeps_directories_and_removes_none() {
    let place = Place::new();
    let inner = place.inner();
    std::fs::create_dir_all(inner.join("d/sub")).unwrap();
    std::fs::write(inner.join("d/old"), "old").unwrap();
    std::fs::write(inner.join("d/both"), "old").unwrap();
    std::fs::hard_link(inner.join("d/both"), place.outer.path().join("other-name")).unwrap();
    let tar = Tar::default().file("d/both", "new").file("d/sub/deep/new", "new").end();
    place.unpack(&tar, &Limits::default(), Existing::Merge).unwrap();
    assert_eq!(std::fs::read(inner.join("d/old")).unwrap(), b"old");
    assert_eq!(std::fs::read(inner.join("d/both")).unwrap(), b"new");
    assert_eq!(std::fs::read(inner.join("d/sub/deep/new")).unwrap(), b"new");
    assert_eq!(std::fs::read(place.outer.path().join("other-name")).unwrap(), b"old");
    assert_eq!(code(place.unpack(&Tar::default().file("d", "x").end(), &Limits::default(), Existing::Merge)), Invalid);
    assert_eq!(code(place.unpack(&Tar::default().end(), &Limits::default(), Existing::Empty)), Invalid);
}

#[test]
fn limits_hold_exactly() {
    let tar = Tar::default().file("a/b/c", "12345").file("d", "67890").end();
    let exact = Limits { entries: 4, unpacked_bytes: 10, path_bytes: 5, ratio: 200 };
    assert_eq!(super::super::digest(&mut &*tar, &exact).unwrap().entries, 4);
    for tight in [
        Limits { entries: 3, ..exact.clone() },
        Limits { unpacked_bytes: 9, ..exact.clone() },
        Limits { path_bytes: 4, ..exact.clone() },
        Limits { entries: 0, ..exact },
    ] {
        assert_eq!(code(super::super::digest(&mut &*tar, &tight)), Limit);
        assert_eq!(code(Place::new().unpack(&tar, &tight, Existing::Empty)), Limit);
    }
}

#[test]
fn global_headers_cannot_go_on_forever() {
    let tar = (0..50).fold(Tar::default(), |tar, _| tar.pax(b'g', "comment", b"x")).end();
    assert!(digest(&tar).is_ok());
    assert_eq!(code(super::super::digest(&mut &*tar, &Limits { entries: 10, ..Limits::default() })), Limit);
}

fn sample() -> Vec<u8> {
    let long = format!("{}/{}", "d".repeat(120), "f".repeat(200));
    let t =
        Tar::default().dir("a", 0o755).file("a/b", &"x".repeat(1500)).file(&long, "y").link("a/c", "a/b").symlink("s", &"t".repeat(150));
    t.pax(b'x', "mtime", b"1.5").file("empty", "").end()
}

#[test]
fn a_truncated_archive_never_passes() {
    let tar = sample();
    digest(&tar).unwrap();
    for end in (0..tar.len()).step_by(512).chain((0..tar.len()).step_by(97)) {
        assert_eq!(code(digest(&tar[..end])), Invalid, "{end}");
        let place = Place::new();
        assert_eq!(code(place.unpack(&tar[..end], &Limits::default(), Existing::Empty)), Invalid, "{end}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_mutation_panics_or_escapes(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8), mend in any::<bool>()) {
        let mut tar = sample();
        for (at, byte) in changes {
            let at = at.index(tar.len());
            tar[at] = byte;
            // Without a right checksum nothing behind it would be reached.
            let header = at / 512 * 512;
            if mend {
                checksum(&mut tar[header..header + 512]);
            }
        }
        let place = Place::new();
        let told = digest(&tar);
        let done = place.unpack(&tar, &Limits::default(), Existing::Empty);
        prop_assert_eq!(told.as_ref().map_err(|e| e.code), done.as_ref().map_err(|e| e.code));
        if let (Ok(tree), true) = (done, reads_everything()) {
            let again = digest(&pack(&place.inner())).unwrap();
            prop_assert_eq!(&again, &tree);
        }
        place.assert_untouched();
    }

    /// Longer with `PROPTEST_CASES`.
    #[test]
    fn nothing_made_of_hostile_archives_panics_or_escapes(
        (one, other) in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
        cut in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..12),
        existing in prop::sample::select(vec![Existing::Empty, Existing::Merge]),
    ) {
        let corpus = hostile();
        let (head, tail) = (&one.get(&corpus).1, &other.get(&corpus).1);
        // Whole entries of one, then all of the other.
        let blocks = cut.index(head.len() / 512 + 1) * 512;
        let mut tar = [&head[..blocks], tail].concat();
        // Nothing of one and all of an empty other leaves no byte to change.
        let changes = if tar.is_empty() { Vec::new() } else { changes };
        for (at, byte) in changes {
            let at = at.index(tar.len());
            tar[at] = byte;
            let header = at / 512 * 512;
            if header + 512 <= tar.len() {
                checksum(&mut tar[header..header + 512]);
            }
        }
        let limits = Limits { entries: 10_000, unpacked_bytes: 1 << 20, ..Limits::default() };
        let place = Place::new();
        let told = super::super::digest(&mut &*tar, &limits);
        let done = place.unpack(&tar, &limits, existing);
        // A file system may refuse more.
        if let Ok(tree) = &done {
            prop_assert_eq!(told.as_ref().ok(), Some(tree));
        }
        prop_assert!(told.is_ok() || done.is_err());
        place.assert_untouched();
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..4096)) {
        prop_assert!(digest(&bytes).is_err());
    }
}
