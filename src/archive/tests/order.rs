//! One tree, one digest, however its tar was written.

use std::collections::BTreeSet;

use super::*;

#[test]
fn the_order_of_entries_does_not_matter() {
    let one = Tar::default().dir("a", 0o750).file("a/x", "1").file("b", "2").symlink("c", "a").end();
    let two = Tar::default().symlink("c", "a").file("a/x", "1").file("b", "2").dir("a", 0o750).end();
    assert_eq!(digest(&one).unwrap(), digest(&two).unwrap());
}

#[test]
fn neighbours_whose_names_begin_alike_are_told_apart() {
    let paths = ["a/b/c/1", "a/b/c/2", "a/bc/1", "a/b/1", "a/1", "ab/c/1", "a/b/cd/1", "a/b/c/d/1", "1"];
    let tar = |paths: &[&str]| digest(&paths.iter().fold(Tar::default(), |tar, path| tar.file(path, path)).end()).unwrap();
    let mut turned = paths;
    let expected = tar(&paths);
    for _ in 0..paths.len() {
        turned.rotate_left(1);
        assert_eq!(tar(&turned), expected);
    }
    turned.reverse();
    assert_eq!(tar(&turned), expected);
    assert_eq!(expected.entries, 9 + 8);
}

#[test]
fn which_name_of_a_file_comes_first_does_not_matter() {
    let digests: BTreeSet<String> = [["x", "y", "z"], ["z", "x", "y"], ["y", "z", "x"]]
        .map(|[first, second, third]| {
            let tar = Tar::default().file(first, "same").link(second, first).link(third, second).end();
            digest(&tar).unwrap().digest
        })
        .into();
    assert_eq!(digests.len(), 1);
    let tree = digest(&Tar::default().file("x", "same").link("y", "x").end()).unwrap();
    assert_eq!((tree.entries, tree.files, tree.bytes), (2, 2, 4));
}

#[test]
fn everything_that_makes_a_tree_makes_its_digest() {
    let t = Tar::default;
    let all = [
        t().end(),
        t().file("a", "1").end(),
        t().file("a", "2").end(),
        t().file("b", "1").end(),
        t().entry(b'0', b"a", b"", 0o755, b"1").end(),
        t().symlink("a", "1").end(),
        t().symlink("a", "2").end(),
        t().dir("a", 0o755).end(),
        t().dir("a", 0o1755).end(),
        t().file("a/b", "").end(),
        t().file("ab", "").end(),
        t().file("a", "").file("b", "").end(),
        t().file("a", "").link("b", "a").end(),
        t().file("a", "1").file("b", "1").file("c", "1").file("d", "1").end(),
        t().file("a", "1").link("b", "a").file("c", "1").link("d", "c").end(),
        t().file("a", "1").link("c", "a").file("b", "1").link("d", "b").end(),
    ];
    let digests: BTreeSet<String> = all.iter().map(|tar| digest(tar).unwrap().digest).collect();
    assert_eq!(digests.len(), all.len());
}

#[test]
fn implied_directories_the_root_and_spelling_do_not_matter() {
    let plain = digest(&Tar::default().dir("a", 0o755).dir("a/b", 0o755).file("a/b/c", "x").end()).unwrap();
    assert_eq!(plain.entries, 3);
    for tar in [
        Tar::default().file("a/b/c", "x").end(),
        Tar::default().dir(".", 0o700).file("./a//b/./c", "x").end(),
        Tar::default().dir("./", 0o700).entry(b'0', b"a/b/", b"", 0o755, b"").entry(0, b"a/b/c", b"", 0o644, b"x").end(),
        Tar::default().pax(b'g', "comment", b"hello").pax(b'x', "path", b"./a/b/c").file("other", "x").end(),
    ] {
        assert_eq!(digest(&tar).unwrap(), plain);
    }
}

#[test]
fn special_bits_are_dropped_in_the_digest_and_on_disk() {
    let plain = digest(&Tar::default().dir("d", 0o1777).entry(b'0', b"d/f", b"", 0o755, b"x").end()).unwrap();
    let special = Tar::default().dir("d", 0o7777).entry(b'0', b"d/f", b"", 0o6755, b"x").end();
    assert_eq!(digest(&special).unwrap(), plain);
    let place = Place::new();
    place.unpack(&special, &Limits::default(), Existing::Empty).unwrap();
    assert_eq!(find(&place.inner(), &["-mindepth", "1", "-printf", "%P %m\n"]), [&b"d 1777"[..], b"d/f 755"]);
    assert_eq!(digest(&pack(&place.inner())).unwrap(), plain);
}

#[test]
fn a_later_entry_of_the_same_kind_wins_and_leaves_other_names_alone() {
    let tar = Tar::default().file("a", "old").link("b", "a").file("a", "new").symlink("s", "1").symlink("s", "2").end();
    let place = Place::new();
    let tree = place.unpack(&tar, &Limits::default(), Existing::Empty).unwrap();
    assert_eq!(tree, digest(&Tar::default().file("a", "new").file("b", "old").symlink("s", "2").end()).unwrap());
    assert_eq!(digest(&pack(&place.inner())).unwrap(), tree);
}

/// The form is a promise to every stored archive: a change of these values, which were computed by another program from the
/// ledger's description, is a new algorithm.
#[test]
fn the_digest_is_what_it_always_was() {
    let tar = Tar::default().dir("d", 0o755).file("d/f", "content").link("g", "d/f").symlink("s", "/away").end();
    assert_eq!(digest(&tar).unwrap().digest, "6401cdd7825b13fac218e8b858c7913b2c63c29033a86fdfdbd8399c1ed0f1a6");
    assert_eq!(digest(&Tar::default().end()).unwrap().digest, "3e5664a83effaddba9956cc72dce5257acc946420ad97fb2798e9e00646ae48d");
}
