//! Finds the ELF files of folders, by their first bytes.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::shell::{self, Result};

/// What a file is, as far as its headers say without being parsed in full.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Pie,
    Shared,
    /// At a fixed address.
    Fixed,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Pie => "PIE",
            Kind::Shared => "shared object",
            Kind::Fixed => "non-PIE",
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct File {
    pub(crate) path: PathBuf,
    pub(crate) kind: Kind,
    pub(crate) size: u64,
    /// Bytes of the segments that are executed.
    pub(crate) code: u64,
}

/// The ELF files in these folders (not below them) and among these files, each once, by the path behind all links.
pub(crate) fn find(roots: &[PathBuf]) -> Result<Vec<File>> {
    let mut found: BTreeMap<PathBuf, File> = BTreeMap::new();
    for root in roots {
        let paths = if root.is_dir() { shell::sorted_entries(root)? } else { vec![root.clone()] };
        for path in paths {
            let Ok(path) = path.canonicalize() else { continue };
            if let Some(file) = look_at(&path) {
                found.insert(path, file);
            }
        }
    }
    Ok(found.into_values().collect())
}

/// What a file is; `None` if it is no ELF file that relift is for.
pub(crate) fn look_at(path: &Path) -> Option<File> {
    let metadata = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    let mut head = [0u8; 4096];
    let mut file = fs::File::open(path).ok()?;
    let mut len = 0;
    while let Ok(count @ 1..) = file.read(&mut head[len..]) {
        len += count;
    }
    let kind = kind_of(&head[..len], path)?;
    Some(File { path: path.to_owned(), kind, size: metadata.len(), code: code_bytes(&head[..len]) })
}

/// 64-bit, little-endian, x86-64, linked; with an interpreter it is a program, unless it is named like a library.
fn kind_of(head: &[u8], path: &Path) -> Option<Kind> {
    const EM_X86_64: u16 = 62;
    const PT_INTERP: u32 = 3;
    let half = |at: usize| Some(u16::from_le_bytes(head.get(at..at + 2)?.try_into().ok()?));
    let word = |at: usize| Some(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?));
    if head.get(..6)? != b"\x7fELF\x02\x01" || half(18)? != EM_X86_64 {
        return None;
    }
    let e_phoff = u64::from_le_bytes(head.get(32..40)?.try_into().ok()?) as usize;
    let has_interpreter = (0..usize::from(half(56)?)).any(|index| word(e_phoff.saturating_add(56 * index)) == Some(PT_INTERP));
    let is_named_library = path.file_name()?.to_string_lossy().contains(".so");
    match half(16)? {
        2 => Some(Kind::Fixed),
        3 if has_interpreter && !is_named_library => Some(Kind::Pie),
        3 => Some(Kind::Shared),
        _ => None,
    }
}

/// The sizes of all executable segments that the first bytes of a file describe.
fn code_bytes(head: &[u8]) -> u64 {
    const PT_LOAD: u32 = 1;
    const PF_X: u32 = 1;
    let word = |at: usize| Some(u32::from_le_bytes(head.get(at..at.checked_add(4)?)?.try_into().ok()?));
    let long = |at: usize| Some(u64::from_le_bytes(head.get(at..at.checked_add(8)?)?.try_into().ok()?));
    let e_phoff = long(32).unwrap_or(0) as usize;
    let count = head.get(56..58).map_or(0, |half| u16::from_le_bytes([half[0], half[1]]));
    let size = |index: u16| {
        let at = e_phoff.checked_add(56 * usize::from(index))?;
        (word(at)? == PT_LOAD && word(at.checked_add(4)?)? & PF_X != 0).then(|| long(at.checked_add(32)?)).flatten()
    };
    (0..count).filter_map(size).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stock_program_and_a_text_are_told_apart() {
        let shell = Path::new("/bin/sh").canonicalize().unwrap_or_else(|error| panic!("{error}"));
        assert!(look_at(&shell).is_some_and(|file| file.code > 10_000));
        assert!(look_at(&crate::repository_root().join("Cargo.toml")).is_none());
    }

    #[test]
    fn headers_cut_short_are_no_program() {
        assert_eq!(kind_of(b"\x7fELF\x02\x01", Path::new("x")), None);
        assert_eq!(kind_of(b"", Path::new("x")), None);
    }
}
