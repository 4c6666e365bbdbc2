//! Fetching Debian source packages without touching the machine's package configuration.
//!
//! The machine's own package sources are copied with their type changed to `deb-src`, and apt is pointed at the copies and at
//! private state folders. So no file under `/etc` changes, no root right is needed, and no package host is named here.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{self, Result};

/// Written into a source tree when it is unpacked and prepared, so that half a tree is never taken for a whole one.
const READY_MARK: &str = "relift-corpus-ready";

/// The unpacked and prepared source tree of `package`; fetches it first if it is not there.
pub(crate) fn unpacked(package: &str, program: &str, prepare: &[&[&str]], directory: &Path) -> Result<PathBuf> {
    let folder = directory.join("build").join(program);
    let tree = folder.join("source");
    if tree.join(READY_MARK).is_file() {
        return Ok(tree);
    }
    for tool in ["apt-get", "dpkg-source", "gcc", "make", "strip"] {
        if shell::find_program(tool).is_none() {
            return Err(format!(
                "the corpus is built from Debian source packages and needs {tool}: run `apt-get install dpkg-dev gcc make`"
            ));
        }
    }
    shell::create_folder(&folder)?;
    let configuration = private_apt(&directory.join("build/apt"))?;
    let mut fetch = Command::new("apt-get");
    fetch.current_dir(&folder).env("APT_CONFIG", &configuration);
    shell::run(fetch.args(["source", "--download-only", "--quiet", package]))?;
    let description = shell::sorted_entries(&folder)?
        .into_iter()
        .find(|path| path.extension().is_some_and(|extension| extension == "dsc"))
        .ok_or_else(|| format!("apt-get fetched no description of the source package {package}"))?;
    if tree.exists() {
        std::fs::remove_dir_all(&tree).map_err(|error| format!("cannot remove {}: {error}", tree.display()))?;
    }
    shell::run(Command::new("dpkg-source").args(["--no-check", "--extract"]).arg(&description).arg(&tree))?;
    for words in prepare {
        if let Some((name, arguments)) = words.split_first() {
            shell::run(Command::new(name).args(arguments).current_dir(&tree))?;
        }
    }
    shell::write_file(&tree.join(READY_MARK), b"")?;
    Ok(tree)
}

/// Makes a private apt state with source packages enabled, updates its lists once, and returns its configuration file.
fn private_apt(folder: &Path) -> Result<PathBuf> {
    let configuration = folder.join("apt.conf");
    if configuration.is_file() {
        return Ok(configuration);
    }
    let parts = folder.join("parts");
    for needed in [&parts, &folder.join("lists/partial"), &folder.join("cache/archives/partial")] {
        shell::create_folder(needed)?;
    }
    copy_package_sources(&parts)?;
    let folder_text = folder.display();
    let text = format!(
        "Dir::Etc::SourceList \"/dev/null\";\nDir::Etc::SourceParts \"{}\";\nDir::State::Lists \"{folder_text}/lists\";\n\
         Dir::Cache \"{folder_text}/cache\";\nAPT::Sandbox::User \"\";\n",
        parts.display()
    );
    let partial = folder.join("apt.conf.partial");
    shell::write_file(&partial, text.as_bytes())?;
    shell::run(Command::new("apt-get").env("APT_CONFIG", &partial).args(["update", "--quiet"]))?;
    std::fs::rename(&partial, &configuration).map_err(|error| format!("cannot rename {}: {error}", partial.display()))?;
    Ok(configuration)
}

/// Copies the machine's package sources to `parts`, each asking for source packages in place of binary ones.
fn copy_package_sources(parts: &Path) -> Result {
    let mut found = 0;
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    files.extend(shell::sorted_entries(Path::new("/etc/apt/sources.list.d")).unwrap_or_default());
    for file in files.iter().filter(|file| file.is_file()) {
        let style = file.extension().map(|extension| extension.to_string_lossy().into_owned()).unwrap_or_default();
        let text = String::from_utf8_lossy(&shell::read_file(file)?).into_owned();
        let changed: Vec<String> = match style.as_str() {
            "sources" => {
                text.lines().map(|line| if line.starts_with("Types:") { "Types: deb-src".into() } else { line.into() }).collect()
            }
            "list" => text.lines().filter_map(|line| line.strip_prefix("deb ")).map(|rest| format!("deb-src {rest}")).collect(),
            _ => continue,
        };
        let name = file.file_name().unwrap_or_default();
        shell::write_file(&parts.join(name), (changed.join("\n") + "\n").as_bytes())?;
        found += 1;
    }
    if found == 0 {
        return Err("this machine has no apt package sources: the corpus can only be built on Debian or a relative of it".into());
    }
    Ok(())
}
