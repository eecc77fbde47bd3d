//! Random trees survive packing and unpacking, as GNU tar and `find` see it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use proptest::prelude::*;

use super::*;

/// One thing to make; numbers choose among what is there.
#[derive(Clone, Debug)]
pub(in super::super) enum Make {
    Directory { within: usize, name: Vec<u8>, mode: u32 },
    File { within: usize, name: Vec<u8>, mode: u32, content: Vec<u8> },
    Sparse { within: usize, name: Vec<u8>, length: u64 },
    Symlink { within: usize, name: Vec<u8>, target: Vec<u8> },
    HardLink { within: usize, name: Vec<u8>, of: usize },
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    let byte = any::<u8>().prop_filter("is no name", |byte| !matches!(byte, 0 | b'/'));
    let odd = prop::collection::vec(byte, 1..20).prop_filter("is no name", |name| !matches!(name.as_slice(), b"." | b".."));
    prop_oneof![
        4 => "[a-e]".prop_map(String::into_bytes),
        2 => odd,
        1 => Just(b"new\nline".to_vec()),
        1 => Just(b"\xff\xfe not utf-8".to_vec()),
        1 => (100_usize..=255).prop_map(|length| vec![b'n'; length]),
    ]
}

pub(in super::super) fn trees() -> impl Strategy<Value = Vec<Make>> {
    let within = any::<usize>;
    let content =
        prop_oneof![prop::collection::vec(any::<u8>(), 0..600), (0_usize..3, any::<u8>()).prop_map(|(n, b)| vec![b; n * 100_000])];
    let target = prop_oneof![name(), Just(b"/usr/bin/python3".to_vec()), Just(b"../../away".to_vec()), Just(vec![b't'; 300])];
    let make = prop_oneof![
        (within(), name(), 0_u32..0o2000).prop_map(|(within, name, mode)| Make::Directory { within, name, mode }),
        (within(), name(), 0_u32..0o10000, content).prop_map(|(within, name, mode, content)| Make::File { within, name, mode, content }),
        (within(), name(), 0_u64..3_000_000).prop_map(|(within, name, length)| Make::Sparse { within, name, length }),
        (within(), name(), target).prop_map(|(within, name, target)| Make::Symlink { within, name, target }),
        (within(), name(), any::<usize>()).prop_map(|(within, name, of)| Make::HardLink { within, name, of }),
    ];
    prop::collection::vec(make, 0..25)
}

/// Makes the tree; names that are taken are passed over. Modes come last, so that everything can be made.
pub(in super::super) fn grow(root: &Path, makes: &[Make]) {
    let mut directories = vec![root.to_owned()];
    let mut files = Vec::new();
    let mut modes = Vec::new();
    for make in makes {
        match make {
            Make::Directory { within, name, mode } => {
                let path = directories[within % directories.len()].join(os(name));
                if fs::create_dir(&path).is_ok() {
                    directories.push(path.clone());
                    modes.push((path, *mode));
                }
            }
            Make::File { within, name, mode, content } => {
                let path = directories[within % directories.len()].join(os(name));
                if fs::symlink_metadata(&path).is_err() {
                    fs::write(&path, content).unwrap();
                    files.push(path.clone());
                    modes.push((path, *mode));
                }
            }
            Make::Sparse { within, name, length } => {
                let path = directories[within % directories.len()].join(os(name));
                if fs::symlink_metadata(&path).is_err() {
                    fs::File::create(&path).unwrap().set_len(*length).unwrap();
                    files.push(path);
                }
            }
            Make::Symlink { within, name, target } => {
                let _ = symlink(os(target), directories[within % directories.len()].join(os(name)));
            }
            Make::HardLink { within, name, of } => {
                if !files.is_empty() {
                    let _ = fs::hard_link(&files[of % files.len()], directories[within % directories.len()].join(os(name)));
                }
            }
        }
    }
    let needed = if reads_everything() { 0 } else { 0o500 };
    for (path, mode) in modes.iter().rev() {
        fs::set_permissions(path, fs::Permissions::from_mode(*mode & 0o1777 | needed)).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn what_is_unpacked_is_what_was_packed(makes in trees()) {
        let (from, here, there) = (Place::new(), Place::new(), Place::new());
        grow(&from.inner(), &makes);
        let tar = pack(&from.inner());
        let tree = digest(&tar).unwrap();
        let unpacked = here.unpack(&tar, &Limits::default(), Existing::Empty).unwrap();
        prop_assert_eq!(&unpacked, &tree);
        prop_assert_eq!(picture(&here.inner()), picture(&from.inner()));
        prop_assert_eq!(&digest(&pack(&here.inner())).unwrap(), &tree);

        gnu_unpack(&tar, &there.inner());
        prop_assert_eq!(picture(&there.inner()), picture(&from.inner()));
        for arguments in [&["--format=gnu"][..], &["--format=posix"], &["--format=gnu", "--sort=inode"]] {
            prop_assert_eq!(&digest(&gnu_pack(&from.inner(), arguments)).unwrap(), &tree);
        }
    }
}

#[test]
fn a_directory_that_may_not_be_written_is_filled() {
    let place = Place::new();
    let locked = if reads_everything() { 0o000 } else { 0o500 };
    let tar = Tar::default().dir("d", 0o555).dir("d/e", locked).file("d/e/f", "x").file("d/g", "y").end();
    // The second time over itself, as a workspace that a command has locked down.
    for existing in [Existing::Empty, Existing::Merge] {
        let tree = place.unpack(&tar, &Limits::default(), existing).unwrap();
        let expected = ["d 555 1700000000".to_owned(), format!("d/e {locked:o} 1700000000")].map(String::into_bytes);
        assert_eq!(find(&place.inner(), &["-mindepth", "1", "-type", "d", "-printf", "%P %m %Ts\n"]), expected);
        assert_eq!(digest(&pack(&place.inner())).unwrap(), tree);
    }
}

#[test]
fn a_directory_that_may_not_even_be_read_is_filled() {
    let place = Place::new();
    let tar = Tar::default().dir("d", 0o000).dir("d/e", 0o000).file("d/e/f", "x").end();
    for existing in [Existing::Empty, Existing::Merge] {
        place.unpack(&tar, &Limits::default(), existing).unwrap();
        assert_eq!(fs::metadata(place.inner().join("d")).unwrap().permissions().mode() & 0o7777, 0);
    }
    fs::set_permissions(place.inner().join("d"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::set_permissions(place.inner().join("d/e"), fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(fs::read(place.inner().join("d/e/f")).unwrap(), b"x");
}

#[test]
fn names_up_to_four_kibibytes_survive() {
    let place = Place::new();
    let path = vec!["n".repeat(255); 16].join("/");
    assert_eq!(path.len(), 4095);
    let tar = Tar::default().file(&path, "x").symlink("s", &"t".repeat(4095)).end();
    let tree = place.unpack(&tar, &Limits::default(), Existing::Empty).unwrap();
    assert_eq!(digest(&pack(&place.inner())).unwrap(), tree);
}

#[test]
fn an_empty_tree_is_a_tree() {
    let place = Place::new();
    let tar = pack(&place.inner());
    assert_eq!(tar.len(), 1024);
    let tree = Place::new().unpack(&tar, &Limits::default(), Existing::Empty).unwrap();
    assert_eq!((tree.entries, tree.files, tree.bytes), (0, 0, 0));
}
