//! Which programs need which library, by asking the loader.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{elf, skip};

/// Programs by the library that they load, by its path behind all links.
#[derive(Debug, Default)]
pub(super) struct Users {
    by_library: BTreeMap<PathBuf, Vec<PathBuf>>,
}

impl Users {
    /// Asks `ldd` about every program of a folder. Programs that load little come first: they say most about each library.
    pub(super) fn find(folder: &Path) -> Users {
        let mut needs: Vec<(PathBuf, Vec<PathBuf>)> = Vec::new();
        for file in elf::find(&[folder.to_owned()]).unwrap_or_default() {
            if skip::reason(&file.path).is_some() {
                continue;
            }
            let Ok(said) = Command::new("ldd").arg(&file.path).output() else { continue };
            needs.push((file.path, libraries(&String::from_utf8_lossy(&said.stdout))));
        }
        needs.sort_by_key(|(program, libraries)| (libraries.len(), program.clone()));
        let mut users = Users::default();
        for (program, libraries) in needs {
            for library in libraries {
                users.by_library.entry(library).or_default().push(program.clone());
            }
        }
        users
    }

    pub(super) fn of(&self, library: &Path) -> &[PathBuf] {
        self.by_library.get(library).map_or(&[], Vec::as_slice)
    }
}

/// The paths in lines such as `libz.so.1 => /lib/libz.so.1 (0x…)` and `/lib64/ld.so (0x…)`.
fn libraries(said: &str) -> Vec<PathBuf> {
    let path_of = |line: &str| {
        let path = line.split_once("=>").map_or(line, |parts| parts.1);
        path.split_once(" (").map(|parts| PathBuf::from(parts.0.trim()))
    };
    said.lines().filter_map(path_of).filter_map(|path| path.canonicalize().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_loader_name_libraries() {
        let said = "\tlinux-vdso.so.1 (0x1)\n\tlibsh => /bin/sh (0x2)\n\t/bin/sh (0x3)\n\tnot a dynamic executable\n";
        let shell = Path::new("/bin/sh").canonicalize().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(libraries(said), [shell.clone(), shell]);
    }
}
