//! An output may do what its input may, or less and relift says so: never more, whoever runs relift.

mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{XattrFlags, getxattr, setxattr};
use support::{relift, relift_succeeds, skipped};
use tempfile::TempDir;

/// A user and group without rights; that they exist is not needed.
const NOBODY: u32 = 65534;

const SET_IDS: u32 = 0o6000;

/// A folder that everybody may write to, and a program in it.
fn program() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).expect("the folder is ours");
    let program = support::compile_text(support::SMALL, &["-O2", "-fPIE", "-pie"], folder.path(), "program");
    (folder, program)
}

/// The commands that write a program: what stands before the input and the output, and after.
fn commands(folder: &Path) -> [(&'static str, Vec<String>); 3] {
    let counters = folder.join("counters").display().to_string();
    [("optimize", vec![]), ("shrink", vec![]), ("instrument", vec!["--profile".into(), counters])]
}

/// Relinks by each command, with `runner` before relift's name; gives each output, and what was said.
fn outputs(input: &Path, folder: &Path, runner: &[&str]) -> Vec<(PathBuf, String)> {
    let mut made = Vec::new();
    // Where the tests are built others may have no way to.
    let tool = folder.join("relift");
    // By another process: what this one writes can't be executed while a neighboring test starts a process.
    let copied = Command::new("cp").arg(relift().get_program()).arg(&tool).status().expect("there is a cp");
    assert!(copied.success(), "relift can be copied");
    for (name, more) in commands(folder) {
        let output = folder.join(format!("{}.{name}", made.len()));
        let words = runner.iter().copied().map(String::from).chain([tool.display().to_string()]).collect::<Vec<_>>();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(name).arg(input).arg("-o").arg(&output).args(more);
        let ran = relift_succeeds(&mut command, folder);
        made.push((output, ran.stderr_text()));
    }
    made
}

fn am_root(folder: &Path) -> bool {
    fs::metadata(folder).is_ok_and(|metadata| metadata.uid() == 0)
}

#[test]
fn root_gives_a_program_that_runs_as_its_owner_no_other_owner() {
    let (folder, program) = program();
    if !am_root(folder.path()) {
        return skipped("a program of another user, relinked by root: this is not root");
    }
    chown(&program, Some(NOBODY), Some(NOBODY)).expect("root can");
    fs::set_permissions(&program, Permissions::from_mode(SET_IDS | 0o755)).expect("root can");
    for (output, said) in outputs(&program, folder.path(), &["env"]) {
        let output = fs::metadata(output).expect("the output is there");
        assert_eq!((output.uid(), output.gid()), (NOBODY, NOBODY), "it would run as root");
        assert_eq!(output.mode() & 0o7777, SET_IDS | 0o755);
        assert!(!said.contains("unlike the input"), "{said}");
    }
}

#[test]
fn whoever_is_not_the_owner_gets_a_program_that_runs_as_whoever_starts_it_and_is_told() {
    let (folder, program) = program();
    if !am_root(folder.path()) || !support::installed("setpriv") {
        return skipped("a program of root's, relinked by another user: this is not root, or there is no setpriv");
    }
    fs::set_permissions(&program, Permissions::from_mode(SET_IDS | 0o755)).expect("root can");
    let runner = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    for (output, said) in outputs(&program, folder.path(), &runner) {
        let output = fs::metadata(output).expect("the output is there");
        assert_eq!(output.uid(), NOBODY);
        assert_eq!(output.mode() & 0o7777, 0o755);
        assert!(said.contains("no set-user-ID bit") && said.contains("no set-group-ID bit"), "{said}");
    }
}

#[test]
fn what_root_writes_in_the_place_of_a_file_keeps_its_owner() {
    let (folder, program) = program();
    if !am_root(folder.path()) {
        return skipped("the file of another user, replaced by root: this is not root");
    }
    chown(&program, Some(NOBODY), Some(NOBODY)).expect("root can");
    relift_succeeds(relift().arg("optimize").arg(&program).arg("-o").arg(&program), folder.path());
    let output = fs::metadata(&program).expect("the output is there");
    assert_eq!((output.uid(), output.gid()), (NOBODY, NOBODY));
}

/// An access list as the kernel keeps it: version 2, then tag, rights and id of each entry (`linux/posix_acl_xattr.h`).
fn access_list() -> Vec<u8> {
    const ANY: u32 = u32::MAX;
    let entries = [(1u16, 7u16, ANY), (2, 7, NOBODY), (4, 4, ANY), (0x10, 7, ANY), (0x20, 4, ANY)];
    let bytes =
        entries.iter().flat_map(|(tag, rights, id)| [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat());
    2u32.to_le_bytes().into_iter().chain(bytes).collect()
}

/// `cap_net_raw` permitted and effective, revision 2 (`linux/capability.h`).
fn capability() -> Vec<u8> {
    [0x0200_0001u32, 1 << 13, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn keeps(name: &str, value: &[u8]) {
    let (folder, program) = program();
    if let Err(error) = setxattr(&program, name, value, XattrFlags::empty()) {
        return skipped(&format!("{name}: {error}"));
    }
    let mode = fs::metadata(&program).expect("the program is there").mode();
    for (output, said) in outputs(&program, folder.path(), &["env"]) {
        let mut found = vec![0; 4096];
        let len = getxattr(&output, name, &mut found[..]).unwrap_or_else(|error| panic!("{}: {name}: {error}", output.display()));
        assert_eq!(&found[..len], value);
        assert_eq!(fs::metadata(&output).expect("the output is there").mode(), mode);
        assert!(!said.contains("unlike the input"), "{said}");
    }
}

#[test]
fn capabilities_stay() {
    keeps("security.capability", &capability());
}

#[test]
fn access_lists_stay() {
    keeps("system.posix_acl_access", &access_list());
}

#[test]
fn who_may_not_give_capabilities_is_told_that_they_are_gone() {
    let (folder, program) = program();
    let given = setxattr(&program, "security.capability", &capability(), XattrFlags::empty());
    if given.is_err() || !support::installed("setpriv") {
        return skipped("capabilities that another user may not give: nor may this one, or there is no setpriv");
    }
    for (output, said) in outputs(&program, folder.path(), &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]) {
        assert!(getxattr(&output, "security.capability", &mut [0; 64][..]).is_err());
        assert!(said.contains("no capabilities"), "{said}");
    }
}
