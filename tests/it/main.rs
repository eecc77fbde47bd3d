//! Tests of promises, one file each, in one program.

mod local;
