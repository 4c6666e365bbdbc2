//! Reading inputs and writing outputs whole or not at all.

mod rights;

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use tempfile::NamedTempFile;

use crate::failure::{Failure, Result};

/// The bytes of an input file, mapped where the system can.
#[derive(Debug)]
pub(crate) enum Input {
    Mapped(Mmap),
    /// A file of no bytes can't be mapped.
    Empty,
}

impl std::ops::Deref for Input {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Input::Mapped(map) => map,
            Input::Empty => &[],
        }
    }
}

pub(crate) fn read(path: &Path) -> Result<Input> {
    let cannot = |e: io::Error| Failure::at(path, format!("can't be read: {e}"));
    // Asked before it is opened: a pipe that nobody writes to would never open.
    let metadata = fs::metadata(path).map_err(cannot)?;
    if !metadata.is_file() {
        return Err(Failure::at(path, "not a regular file"));
    }
    let file = File::open(path).map_err(cannot)?;
    if metadata.len() == 0 {
        return Ok(Input::Empty);
    }
    // SAFETY: the map is only read. Another process that truncates the file meanwhile can stop this one (SIGBUS), as with any mapped
    // reader; outputs are never written in place, so relift itself never does. Reading 100 MB into memory instead doubles the peak memory.
    #[expect(unsafe_code)]
    let map = unsafe { Mmap::map(&file) };
    map.map(Input::Mapped).map_err(cannot)
}

/// Refuses an output in the place of something else that is needed: it would be gone.
pub(crate) fn keep_apart<'p>(output: &Path, others: impl IntoIterator<Item = (&'p Path, &'static str)>) -> Result<()> {
    match others.into_iter().find(|(other, _)| is_same(output, other)) {
        Some((_, what)) => Err(Failure::at(output, format!("not written: it is {what}")).hint("choose another path")),
        None => Ok(()),
    }
}

/// Whether two paths, behind all links, are of one file, or will be.
fn is_same(a: &Path, b: &Path) -> bool {
    let (a, b) = (behind_links(a), behind_links(b));
    match (fs::metadata(&a), fs::metadata(&b)) {
        (Ok(a), Ok(b)) => a.is_file() && (a.dev(), a.ino()) == (b.dev(), b.ino()),
        (Err(_), Err(_)) => std::path::absolute(a).is_ok_and(|a| std::path::absolute(b).is_ok_and(|b| a == b)),
        _ => false,
    }
}

/// Where writing to `path` writes to: what links lead to, be it there or not.
fn behind_links(path: &Path) -> PathBuf {
    /// As many as the kernel follows.
    const LINKS_MAX: usize = 40;
    let mut path = path.to_path_buf();
    for _ in 0..LINKS_MAX {
        let Ok(next) = fs::read_link(&path) else { break };
        path = path.parent().unwrap_or(Path::new("")).join(next);
    }
    path
}

/// An output under construction, of which nothing is seen until it is put in place.
#[derive(Debug)]
pub(crate) enum Draft {
    /// A temporary file in the target's folder, which vanishes unless it takes the target's name.
    File { file: NamedTempFile, target: PathBuf, lost: Vec<&'static str> },
    /// For a device or a pipe, `/dev/null` say: a file that took its name would be there in its stead for everyone.
    Special { bytes: Vec<u8>, target: PathBuf },
}

fn cannot_write(target: &Path, why: impl std::fmt::Display) -> Failure {
    Failure::at(target, format!("can't be written: {why}")).hint("choose another output path")
}

/// A temporary file where `target` is to be; `None` where a device or a pipe is.
fn temporary(target: &Path) -> Result<Option<NamedTempFile>> {
    let there = fs::metadata(target).ok();
    if there.as_ref().is_some_and(fs::Metadata::is_dir) {
        return Err(cannot_write(target, "it is a folder"));
    }
    if there.is_some_and(|there| !there.is_file()) {
        return Ok(None);
    }
    if target.is_symlink() {
        return Err(cannot_write(target, "it is a link that leads nowhere"));
    }
    let folder = match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if !folder.is_dir() {
        return Err(cannot_write(target, format!("{} is no folder", folder.display())));
    }
    // With the temporary file's own name, which would tell nobody anything, the error has but its kind in common with the system's.
    let cannot = |e: io::Error| cannot_write(target, io::Error::from(e.kind()));
    tempfile::Builder::new().prefix(".relift-").tempfile_in(folder).map(Some).map_err(cannot)
}

/// Fails if nothing could be written to `target`: before work of minutes, not after it.
pub(crate) fn require_writable(target: &Path) -> Result<()> {
    temporary(&behind_links(target)).map(drop)
}

impl Draft {
    /// Writes `bytes` with the rights of `like`. A link stays: what it leads to is written.
    pub(crate) fn write(target: &Path, bytes: &[u8], like: &Path) -> Result<Self> {
        let target = behind_links(target);
        let Some(mut file) = temporary(&target)? else { return Ok(Draft::Special { bytes: bytes.to_vec(), target }) };
        let cannot = |e: io::Error| cannot_write(&target, e);
        file.as_file_mut().write_all(bytes).map_err(cannot)?;
        let lost = rights::pass_on(file.as_file(), like, fs::metadata(&target).ok().as_ref()).map_err(cannot)?;
        Ok(Draft::File { file, target, lost })
    }

    /// Which of its input's rights the output can't have.
    pub(crate) fn warning(&self) -> Option<String> {
        match self {
            Draft::File { target, lost, .. } if !lost.is_empty() => {
                Some(format!("{} has no {}, unlike the input", target.display(), lost.join(", no ")))
            }
            _ => None,
        }
    }

    /// Renames the draft into place.
    pub(crate) fn put_in_place(self) -> Result<()> {
        match self {
            Draft::File { file, target, .. } => file.persist(&target).map(drop).map_err(|e| cannot_write(&target, e.error)),
            Draft::Special { bytes, target } => {
                let written = File::options().write(true).open(&target).and_then(|mut file| file.write_all(&bytes));
                written.map_err(|e| cannot_write(&target, e))
            }
        }
    }
}
