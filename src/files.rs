//! Reading inputs and writing outputs whole or not at all.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

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
    let file = File::open(path).map_err(|e| Failure::at(path, format!("can't be read: {e}")))?;
    let metadata = file.metadata().map_err(|e| Failure::at(path, format!("can't be read: {e}")))?;
    if !metadata.is_file() {
        return Err(Failure::at(path, "not a regular file"));
    }
    if metadata.len() == 0 {
        return Ok(Input::Empty);
    }
    // SAFETY: the map is only read. Another process that truncates the file meanwhile can stop this one (SIGBUS), as with any mapped
    // reader; outputs are never written in place, so relift itself never does. Reading 100 MB into memory instead doubles the peak memory.
    #[expect(unsafe_code)]
    let map = unsafe { Mmap::map(&file) };
    map.map(Input::Mapped).map_err(|e| Failure::at(path, format!("can't be read: {e}")))
}

/// An output under construction, of which nothing is seen until it is put in place.
#[derive(Debug)]
pub(crate) enum Draft {
    /// A temporary file in the target's folder, which vanishes unless it takes the target's name.
    File { file: tempfile::NamedTempFile, target: PathBuf },
    /// For a device or a pipe, `/dev/null` say: a file that took its name would be there in its stead for everyone.
    Special { bytes: Vec<u8>, target: PathBuf },
}

fn cannot_write(target: &Path, why: impl std::fmt::Display) -> Failure {
    Failure::at(target, format!("can't be written: {why}")).hint("choose another output path")
}

impl Draft {
    /// Writes `bytes` with the mode bits of `like`. A link stays: what it leads to is written.
    pub(crate) fn write(target: &Path, bytes: &[u8], like: &Path) -> Result<Self> {
        let resolved = target.is_symlink().then(|| target.canonicalize().ok()).flatten();
        let target = resolved.as_deref().unwrap_or(target);
        let cannot = |e: std::io::Error| cannot_write(target, e);
        if target.is_dir() {
            return Err(cannot_write(target, "it is a folder"));
        }
        if fs::metadata(target).is_ok_and(|there| !there.is_file()) {
            return Ok(Draft::Special { bytes: bytes.to_vec(), target: target.to_path_buf() });
        }
        let folder = match target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let mut file = tempfile::Builder::new().prefix(".relift-").tempfile_in(folder).map_err(cannot)?;
        file.write_all(bytes).map_err(cannot)?;
        let mode = fs::metadata(like).map_err(|e| Failure::at(like, e))?.permissions().mode();
        file.as_file().set_permissions(fs::Permissions::from_mode(mode & 0o7777)).map_err(cannot)?;
        Ok(Draft::File { file, target: target.to_path_buf() })
    }

    /// Renames the draft into place.
    pub(crate) fn put_in_place(self) -> Result<()> {
        match self {
            Draft::File { file, target } => file.persist(&target).map(drop).map_err(|e| cannot_write(&target, e.error)),
            Draft::Special { bytes, target } => {
                let written = File::options().write(true).open(&target).and_then(|mut file| file.write_all(&bytes));
                written.map_err(|e| cannot_write(&target, e))
            }
        }
    }
}
