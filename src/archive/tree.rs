//! Says what tree a tar makes, without making it.

use std::io::Read;

use super::header::Mtime;
use super::ledger::Directory;
use super::scan::{Sink, scan};
use super::{Limits, Result, Tree};

/// The name of the digest that this version makes; the ledger documents it.
pub const ALGORITHM: &str = "berth-tree-v1";

/// Reads a tar to its end and returns the tree it makes. Refuses exactly what `unpack` would refuse whatever the disk, with
/// the same errors, in one pass and without keeping content or paths.
pub fn digest(tar: &mut dyn Read, limits: &Limits) -> Result<Tree> {
    scan(tar, limits, &mut Nowhere)
}

struct Nowhere;

impl Sink for Nowhere {
    fn directory(&mut self, _: &[u8], _: u32) -> Result<()> {
        Ok(())
    }
    fn file(&mut self, _: &[u8]) -> Result<()> {
        Ok(())
    }
    fn content(&mut self, _: &[u8]) -> Result<()> {
        Ok(())
    }
    fn file_end(&mut self, _: u16, _: Mtime) -> Result<()> {
        Ok(())
    }
    fn symlink(&mut self, _: &[u8], _: &[u8], _: Mtime) -> Result<()> {
        Ok(())
    }
    fn hard_link(&mut self, _: &[u8], _: &[u8]) -> Result<()> {
        Ok(())
    }
    fn end(&mut self, _: &[Directory]) -> Result<()> {
        Ok(())
    }
}
