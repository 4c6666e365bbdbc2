//! What an output may do, and who may run it: as its input, or less, never more.
//!
//! A program that runs as its file's owner (`set-user-ID`) is another program if another user owns it: relinked by root, one that ran as a
//! user without rights would run as root. So such a bit is kept only where the output has the input's owner, which only the owner and root can bring about.
//! Capabilities and access lists live beside the mode, in attributes that a copy of the bytes doesn't have. What can't be given is left out, and said.

use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;

use rustix::fs::{XattrFlags, fsetxattr, getxattr};

const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;
/// With an access list these bits are an upper bound of what it grants, not the group's rights.
const OF_GROUP: u32 = 0o070;

/// No attribute is longer (Linux, `XATTR_SIZE_MAX`).
const ATTRIBUTE_MAX: usize = 1 << 16;

/// Gives a new file the rights of `like`, or, if that needs no owner, the owner of `replaced`; says what it has less.
pub(super) fn pass_on(file: &File, like: &Path, replaced: Option<&Metadata>) -> io::Result<Vec<&'static str>> {
    let wanted = fs::metadata(like)?;
    let mut mode = wanted.permissions().mode() & 0o7777;
    let is_bound_to_owner = mode & (SET_USER | SET_GROUP) != 0;
    if let Some(owner) = if is_bound_to_owner { Some(&wanted) } else { replaced } {
        // Refused to most users; then the file is theirs.
        let _refused = fchown(file, None, Some(owner.gid()));
        let _refused = fchown(file, Some(owner.uid()), None);
    }
    let owner = file.metadata()?;
    let mut lost = Vec::new();
    if mode & SET_USER != 0 && owner.uid() != wanted.uid() {
        mode &= !SET_USER;
        lost.push("set-user-ID bit");
    }
    if mode & SET_GROUP != 0 && owner.gid() != wanted.gid() {
        mode &= !SET_GROUP;
        lost.push("set-group-ID bit");
    }
    file.set_permissions(Permissions::from_mode(mode))?;
    if !copies_attribute(file, like, "system.posix_acl_access") {
        file.set_permissions(Permissions::from_mode(mode & !OF_GROUP))?;
        lost.push("access list");
    }
    if !copies_attribute(file, like, "security.capability") {
        lost.push("capabilities");
    }
    Ok(lost)
}

/// Whether `file` now has that attribute of `like`, which may be none.
fn copies_attribute(file: &File, like: &Path, name: &str) -> bool {
    let mut value = vec![0; ATTRIBUTE_MAX];
    match getxattr(like, name, &mut value[..]) {
        Ok(len) => fsetxattr(file, name, &value[..len], XattrFlags::empty()).is_ok(),
        Err(_) => true,
    }
}
