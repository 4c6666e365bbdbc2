//! What relift cannot work on gets one clear line on standard error, exit status 1, and leaves no output file.

mod support;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use support::{End, only_line, relift, relift_succeeds, run};
use tempfile::TempDir;

/// Offsets of the ELF header's fields (gABI, "ELF Header").
const E_IDENT_CLASS: usize = 4;
const E_MACHINE: usize = 18;
const E_PHOFF: usize = 32;
const E_SHOFF: usize = 40;
const E_SHNUM: usize = 60;
/// Offset of `sh_offset` in a section header, and a header's size.
const SH_OFFSET: usize = 24;
const SECTION_HEADER_SIZE: usize = 64;

const EM_386: u16 = 3;
const EM_AARCH64: u16 = 183;

fn scratch() -> TempDir {
    tempfile::tempdir().expect("a scratch folder can be made")
}

/// A sound program to spoil.
fn sound_program(folder: &Path) -> PathBuf {
    support::compile_text(support::SMALL, &["-O2", "-fPIE", "-pie"], folder, "sound")
}

/// Fails unless `command` refuses with one line that contains one of `words`, and `output` does not exist afterwards, nor anything
/// that was begun beside it.
fn refuses(command: &mut Command, output: &Path, folder: &Path, words: &[&str]) {
    let before = names(folder);
    let refused = run(command, folder);
    assert_eq!(refused.end, End::Exit(1), "{command:?}: {refused:?}");
    let line = only_line(&refused);
    assert!(words.iter().any(|word| line.contains(word)), "{command:?} says \"{line}\", which has none of {words:?} in it");
    assert!(!output.exists(), "{command:?} left {}", output.display());
    let mut after = names(folder);
    after.retain(|name| !name.starts_with("run."));
    let left: Vec<&String> = after.iter().filter(|name| !before.contains(name)).collect();
    assert!(left.is_empty(), "{command:?} left {left:?} behind");
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("the scratch folder can be listed");
    entries.map(|entry| entry.expect("the scratch folder can be listed").file_name().to_string_lossy().into_owned()).collect()
}

/// Every command that reads a program and writes one refuses `bytes`.
fn every_command_refuses(bytes: &[u8], words: &[&str]) {
    let folder = scratch();
    let input = folder.path().join("input");
    let output = folder.path().join("output");
    fs::write(&input, bytes).expect("the scratch folder can be written");
    fs::set_permissions(&input, fs::Permissions::from_mode(0o755)).expect("the mode can be set");
    refuses(relift().arg("optimize").arg(&input).arg("-o").arg(&output), &output, folder.path(), words);
    let mut instrument = relift();
    instrument.arg("instrument").arg(&input).arg("-o").arg(&output).arg("--profile").arg(folder.path().join("counters"));
    refuses(&mut instrument, &output, folder.path(), words);
    refuses(relift().arg("train").arg(&input).arg("-o").arg(&output).args(["--", "{}"]), &output, folder.path(), words);
    refuses(relift().arg("inspect").arg(&input), &output, folder.path(), words);
}

/// The bytes of a sound program with a change.
fn spoiled(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let folder = scratch();
    let mut bytes = fs::read(sound_program(folder.path())).expect("the program can be read");
    change(&mut bytes);
    bytes
}

fn get_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

#[test]
fn code_that_a_run_time_finds_by_tables_of_its_own_is_refused() {
    let folder = scratch();
    let text = "int jl_sysimg_fvars_base(int x) { return x + 1; }";
    let library = support::compile_text(text, &["-O2", "-fPIC", "-shared"], folder.path(), "image.so");
    every_command_refuses(&fs::read(library).expect("the library was built"), &["Julia"]);
}

#[test]
fn relocations_in_androids_form_are_refused() {
    if !support::installed("ld.lld") {
        return support::skipped("there is no lld, which packs relocations so");
    }
    let text = "int twice(int x) { return 2 * x; }\nint (*const known)(int) = twice;";
    for flags in [&["-Wl,--pack-dyn-relocs=android"][..], &["-Wl,--pack-dyn-relocs=relr", "-Wl,--use-android-relr-tags"]] {
        let folder = scratch();
        let flags = [&["-O2", "-fPIC", "-shared", "-fuse-ld=lld"], flags].concat();
        let library = support::compile_text(text, &flags, folder.path(), "library.so");
        every_command_refuses(&fs::read(library).expect("the library was built"), &["Android"]);
    }
}

#[test]
fn the_large_code_model_is_refused() {
    let text = "#include <stdio.h>\n\
                __attribute__((noinline)) int twice(int x) { return 2 * x; }\n\
                int main(int count, char **words) { printf(\"%d %s\\n\", twice(count), words[0]); return 0; }";
    for kind in [["-fPIE", "-pie"], ["-fno-pie", "-no-pie"]] {
        let folder = scratch();
        let program = support::compile_text(text, &["-O2", "-mcmodel=large", kind[0], kind[1]], folder.path(), "program");
        every_command_refuses(&fs::read(program).expect("the program was built"), &["large code model"]);
    }
}

#[test]
fn a_program_that_starts_from_a_dump_of_its_addresses_is_refused() {
    let folder = scratch();
    let text = "#include <stdio.h>\n#include <string.h>\n\
                int main(int count, char **words) { puts(count > 1 && strcmp(words[1], \"DUMPEDGNUEMACS\") ? words[1] : \"no dump\"); return 0; }";
    let program = support::compile_text(text, &["-O2", "-fPIE", "-pie"], folder.path(), "program");
    every_command_refuses(&fs::read(program).expect("the program was built"), &["Emacs"]);
}

#[test]
fn a_program_that_knows_such_dumps_as_a_kind_of_file_is_relinked() {
    let folder = scratch();
    let text = "#include <stdio.h>\n\
                struct kind { char begins[64]; char is[64]; } const kinds[] = {{\"DUMPEDGNUEMACS\", \"GNU/Emacs pdumper image\"}};\n\
                int main(int count, char **words) { (void)words; return puts(kinds[count - 1].is) < 0; }";
    let program = support::compile_text(text, &["-O2", "-fPIE", "-pie"], folder.path(), "program");
    support::shuffled_does_the_same(&program, &["1"], folder.path());
}

#[test]
fn a_text_file_is_refused() {
    every_command_refuses(
        b"#!/bin/sh\necho this is a script, and long enough to hold the header of a program if it were one\n",
        &["ELF"],
    );
}

#[test]
fn an_empty_file_is_refused() {
    every_command_refuses(b"", &["empty", "ELF", "short", "truncated"]);
}

#[test]
fn a_missing_file_is_refused() {
    let folder = scratch();
    let output = folder.path().join("output");
    refuses(
        relift().arg("optimize").arg(folder.path().join("missing")).arg("-o").arg(&output),
        &output,
        folder.path(),
        &["missing"],
    );
}

#[test]
fn a_folder_is_refused() {
    let folder = scratch();
    let output = folder.path().join("output");
    refuses(
        relift().arg("optimize").arg(folder.path()).arg("-o").arg(&output),
        &output,
        folder.path(),
        &["directory", "folder", "file"],
    );
}

#[test]
fn a_32_bit_program_is_refused() {
    let bytes = spoiled(|bytes| {
        bytes[E_IDENT_CLASS] = 1;
        put_u16(bytes, E_MACHINE, EM_386);
    });
    every_command_refuses(&bytes, &["32", "64-bit"]);
}

#[test]
fn a_program_for_another_processor_is_refused() {
    let bytes = spoiled(|bytes| put_u16(bytes, E_MACHINE, EM_AARCH64));
    every_command_refuses(&bytes, &["x86-64", "machine", "aarch64", "AArch64"]);
}

#[test]
fn an_object_file_is_refused() {
    let folder = scratch();
    let object = support::compile_text(support::SMALL, &["-O2", "-c"], folder.path(), "object");
    every_command_refuses(&fs::read(object).expect("the object can be read"), &["relocatable", "object", "ET_REL", "type"]);
}

#[test]
fn a_truncated_program_is_refused_wherever_it_ends() {
    let whole = spoiled(|_| {});
    for part in [1, 10, 52, 63, 64, 100, whole.len() / 4, whole.len() / 2, whole.len() * 9 / 10, whole.len() - 1] {
        let folder = scratch();
        let (input, output) = (folder.path().join("input"), folder.path().join("output"));
        fs::write(&input, &whole[..part]).expect("the scratch folder can be written");
        refuses(relift().arg("optimize").arg(&input).arg("-o").arg(&output), &output, folder.path(), &[""]);
    }
}

#[test]
fn a_section_header_table_past_the_end_is_refused() {
    every_command_refuses(&spoiled(|bytes| put_u64(bytes, E_SHOFF, 1 << 40)), &["section"]);
}

#[test]
fn a_program_header_table_past_the_end_is_refused() {
    every_command_refuses(&spoiled(|bytes| put_u64(bytes, E_PHOFF, 1 << 40)), &["program header", "segment"]);
}

/// Without section headers and without what tells where the unwind tables are.
fn without_a_trace_of_code(bytes: &mut [u8]) {
    const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
    bytes[E_SHOFF..E_SHOFF + 8].fill(0);
    bytes[E_SHNUM - 2..E_SHNUM + 4].fill(0);
    let (table, count) = (get_u64(bytes, E_PHOFF) as usize, usize::from(bytes[E_SHNUM - 4]));
    for at in (0..count).map(|index| table + 56 * index) {
        if bytes[at..at + 4] == PT_GNU_EH_FRAME.to_le_bytes() {
            bytes[at..at + 4].fill(0);
        }
    }
}

#[test]
fn a_file_in_which_nothing_tells_code_from_data_is_refused() {
    every_command_refuses(&spoiled(|bytes| without_a_trace_of_code(bytes)), &["neither section headers nor unwind tables"]);
}

#[test]
fn a_packed_file_is_refused_by_the_name_of_its_packer() {
    let bytes = spoiled(|bytes| {
        without_a_trace_of_code(bytes);
        // Packers mark what they made in the first page; the padding of `e_ident` is in it.
        bytes[9..13].copy_from_slice(b"UPX!");
    });
    every_command_refuses(&bytes, &["packed with UPX"]);
}

#[test]
fn debug_information_that_was_split_from_its_program_is_refused_as_that() {
    let folder = scratch();
    let (program, debug) = (sound_program(folder.path()), folder.path().join("debug"));
    let split = Command::new("objcopy").arg("--only-keep-debug").arg(&program).arg(&debug).status();
    assert!(split.is_ok_and(|status| status.success()), "objcopy comes with the linker");
    every_command_refuses(&fs::read(&debug).expect("the debug information can be read"), &["debug information"]);
}

#[test]
fn section_offsets_past_the_end_are_refused() {
    let bytes = spoiled(|bytes| {
        let table = get_u64(bytes, E_SHOFF) as usize;
        let count = u16::from_le_bytes([bytes[E_SHNUM], bytes[E_SHNUM + 1]]) as usize;
        for index in 1..count {
            put_u64(bytes, table + index * SECTION_HEADER_SIZE + SH_OFFSET, u64::MAX - 4096);
        }
    });
    every_command_refuses(&bytes, &["section", "past the end", "outside"]);
}

#[test]
fn no_single_spoiled_header_byte_makes_relift_crash() {
    let whole = spoiled(|_| {});
    let folder = scratch();
    let (input, output) = (folder.path().join("input"), folder.path().join("output"));
    for at in 0..64 {
        let mut bytes = whole.clone();
        bytes[at] ^= 0xff;
        fs::write(&input, &bytes).expect("the scratch folder can be written");
        let ended = run(relift().arg("optimize").arg(&input).arg("-o").arg(&output), folder.path());
        assert!(matches!(ended.end, End::Exit(0 | 1)), "byte {at} of the header inverted: {ended:?}");
        if ended.end == End::Exit(1) {
            only_line(&ended);
        }
        assert_eq!(ended.end == End::Exit(0), output.exists(), "byte {at} of the header inverted: {ended:?}");
        let _removed = fs::remove_file(&output);
    }
}

/// Instruments `input`, runs it once and returns the profile.
fn profile_of(input: &Path, folder: &Path) -> PathBuf {
    let (instrumented, profile) = (folder.join("instrumented"), folder.join("counters.rlp"));
    support::relift_succeeds(
        relift().arg("instrument").arg(input).arg("-o").arg(&instrumented).arg("--profile").arg(&profile),
        folder,
    );
    assert_eq!(run(&mut Command::new(&instrumented), folder).end, End::Exit(0));
    profile
}

#[test]
fn a_profile_of_another_program_is_refused() {
    let folder = scratch();
    let profile = profile_of(&sound_program(folder.path()), folder.path());
    let other = "int main(int c, char **v) { volatile long x = 1; while (x < 99999 * c) x += x * 3 % 7 + 1; return (int)x & 1; }";
    let input = support::compile_text(other, &["-O2", "-fPIE", "-pie"], folder.path(), "other");
    let output = folder.path().join("output");
    let mut optimize = relift();
    optimize.arg("optimize").arg(&input).arg("-o").arg(&output).arg("-p").arg(&profile);
    refuses(&mut optimize, &output, folder.path(), &["profile"]);
}

#[test]
fn a_file_that_is_no_profile_is_refused() {
    let folder = scratch();
    let input = sound_program(folder.path());
    let output = folder.path().join("output");
    for (name, bytes) in [("text", b"not a profile at all".as_slice()), ("empty", b""), ("zeros", &[0; 4096])] {
        let profile = folder.path().join(name);
        fs::write(&profile, bytes).expect("the scratch folder can be written");
        let mut optimize = relift();
        optimize.arg("optimize").arg(&input).arg("-o").arg(&output).arg("-p").arg(&profile);
        refuses(&mut optimize, &output, folder.path(), &[name, "profile"]);
        refuses(relift().args(["profile", "show"]).arg(&profile), &output, folder.path(), &[name, "profile"]);
    }
}

#[test]
fn an_output_path_that_cannot_be_written_is_refused() {
    let folder = scratch();
    let input = sound_program(folder.path());
    let output = folder.path().join("no/such/folder/output");
    refuses(relift().arg("optimize").arg(&input).arg("-o").arg(&output), &output, folder.path(), &["no/such/folder"]);
    let onto_a_folder = folder.path().join("taken");
    fs::create_dir(&onto_a_folder).expect("the scratch folder can be written");
    let refused = run(relift().arg("optimize").arg(&input).arg("-o").arg(&onto_a_folder), folder.path());
    assert_eq!(refused.end, End::Exit(1), "{refused:?}");
    assert!(only_line(&refused).contains("taken"), "{refused:?}");
    assert!(names(&onto_a_folder).is_empty());
}

#[test]
fn an_output_that_is_a_pipe_or_a_link_stays_one() {
    use std::os::unix::fs::FileTypeExt;
    let folder = scratch();
    let program = sound_program(folder.path());
    let (pipe, link, expected) = (folder.path().join("pipe"), folder.path().join("link"), folder.path().join("expected"));
    let optimize = |output: &Path| {
        let mut command = relift();
        command.arg("optimize").arg(&program).arg("-o").arg(output);
        command
    };
    relift_succeeds(&mut optimize(&expected), folder.path());
    let expected = fs::read(&expected).expect("the output can be read");
    symlink("behind", &link).expect("a link can be made");
    fs::write(folder.path().join("behind"), "").expect("the scratch folder can be written");
    relift_succeeds(&mut optimize(&link), folder.path());
    assert!(link.is_symlink());
    assert!(fs::read(&link).expect("the output can be read") == expected);
    assert!(Command::new("mkfifo").arg(&pipe).status().is_ok_and(|status| status.success()));
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || fs::read(pipe)
    });
    relift_succeeds(&mut optimize(&pipe), folder.path());
    assert!(fs::metadata(&pipe).is_ok_and(|there| there.file_type().is_fifo()));
    assert!(reader.join().is_ok_and(|read| read.is_ok_and(|bytes| bytes == expected)));
}

#[test]
fn a_pipe_that_nobody_writes_to_is_refused_at_once() {
    let folder = scratch();
    let (program, pipe, output) = (sound_program(folder.path()), folder.path().join("pipe"), folder.path().join("output"));
    assert!(Command::new("mkfifo").arg(&pipe).status().is_ok_and(|status| status.success()));
    refuses(relift().arg("optimize").arg(&pipe).arg("-o").arg(&output), &output, folder.path(), &["not a regular file"]);
    let mut profile = relift();
    profile.arg("optimize").arg(&program).arg("-o").arg(&output).arg("-p").arg(&pipe);
    refuses(&mut profile, &output, folder.path(), &["not a regular file"]);
}

#[test]
fn a_link_that_leads_to_nothing_yet_stays_one() {
    let folder = scratch();
    let (program, link) = (sound_program(folder.path()), folder.path().join("link"));
    symlink("behind", &link).expect("a link can be made");
    relift_succeeds(relift().arg("optimize").arg(&program).arg("-o").arg(&link), folder.path());
    assert!(link.is_symlink());
    assert!(folder.path().join("behind").is_file());
    let (round, circle) = (folder.path().join("round"), folder.path().join("circle"));
    symlink("circle", &round).expect("a link can be made");
    symlink("round", &circle).expect("a link can be made");
    refuses(relift().arg("optimize").arg(&program).arg("-o").arg(&round), &folder.path().join("none"), folder.path(), &["link"]);
}

#[test]
fn an_output_takes_the_place_of_no_profile() {
    let folder = scratch();
    let program = sound_program(folder.path());
    let profile = profile_of(&program, folder.path());
    let bytes = fs::read(&profile).expect("the profile can be read");
    let weighted = format!("{}:2", profile.display());
    symlink(&profile, folder.path().join("link")).expect("a link can be made");
    let link = folder.path().join("link");
    for (command, output, given) in [
        ("optimize", &profile, profile.as_os_str()),
        ("optimize", &link, weighted.as_ref()),
        ("shrink", &profile, profile.as_os_str()),
    ] {
        let refused = run(relift().arg(command).arg(&program).arg("-o").arg(output).arg("-p").arg(given), folder.path());
        assert_eq!(refused.end, End::Exit(1), "{refused:?}");
        assert!(only_line(&refused).contains("it is the profile"), "{refused:?}");
        assert_eq!(fs::read(&profile).expect("the profile is still there"), bytes);
    }
}

#[test]
fn a_profile_takes_the_place_of_no_program() {
    let folder = scratch();
    let program = sound_program(folder.path());
    let bytes = fs::read(&program).expect("the program can be read");
    let output = folder.path().join("output");
    for place in [&program, &output] {
        let mut instrument = relift();
        instrument.arg("instrument").arg(&program).arg("-o").arg(&output).arg("--profile").arg(place);
        refuses(&mut instrument, &output, folder.path(), &["not written: it is the"]);
        let mut train = relift();
        train.arg("train").arg(&program).arg("-o").arg(&output).arg("--profile").arg(place).args(["--", "{}"]);
        refuses(&mut train, &output, folder.path(), &["not written: it is the"]);
    }
    assert_eq!(fs::read(&program).expect("the program is still there"), bytes);
}

#[test]
fn a_training_whose_output_could_not_be_written_is_not_begun() {
    let folder = scratch();
    let (program, output) = (sound_program(folder.path()), folder.path().join("no folder/output"));
    let mut train = relift();
    train
        .arg("train")
        .arg(&program)
        .arg("-o")
        .arg(&output)
        .args(["--", "sh", "-c", "{}; touch begun"])
        .current_dir(folder.path());
    refuses(&mut train, &output, folder.path(), &["no folder"]);
    assert!(!folder.path().join("begun").exists());
}

#[test]
fn a_training_that_is_stopped_leaves_nothing_behind() {
    let folder = scratch();
    let (program, output, temporary) =
        (sound_program(folder.path()), folder.path().join("output"), folder.path().join("temporary"));
    fs::create_dir(&temporary).expect("the scratch folder can be written");
    let mut train = relift();
    train.arg("train").arg(&program).arg("-o").arg(&output).args(["--", "sh", "-c", "{}; touch begun; sleep 30"]);
    let mut train = train.current_dir(folder.path()).env("TMPDIR", &temporary).spawn().expect("relift can be started");
    let becomes_true = |condition: &dyn Fn() -> bool| {
        let patience = (0..1000).any(|_| {
            condition() || {
                std::thread::sleep(Duration::from_millis(20));
                false
            }
        });
        assert!(patience, "{:?}", names(&temporary));
    };
    becomes_true(&|| folder.path().join("begun").exists());
    assert!(!names(&temporary).is_empty());
    train.kill().expect("a child of ours can be killed");
    train.wait().expect("a child of ours can be waited for");
    becomes_true(&|| names(&temporary).is_empty());
    assert!(!output.exists());
}

#[test]
fn a_hundred_thousand_threads_are_not_started() {
    let folder = scratch();
    let (program, output) = (sound_program(folder.path()), folder.path().join("output"));
    relift_succeeds(relift().arg("optimize").arg(&program).arg("-o").arg(&output).args(["--threads", "100000"]), folder.path());
}

#[test]
fn an_output_that_exists_is_left_alone_when_the_input_is_refused() {
    let folder = scratch();
    let (input, output) = (folder.path().join("input"), folder.path().join("output"));
    fs::write(&input, b"nothing of use").expect("the scratch folder can be written");
    fs::write(&output, b"precious").expect("the scratch folder can be written");
    let refused = run(relift().arg("optimize").arg(&input).arg("-o").arg(&output), folder.path());
    assert_eq!(refused.end, End::Exit(1), "{refused:?}");
    assert_eq!(fs::read(&output).expect("the file is still there"), b"precious");
}

#[test]
fn wrong_usage_exits_with_two() {
    let folder = scratch();
    for arguments in [&["optimize"][..], &["nonsense"], &["optimize", "a", "--no-such-flag"], &["train", "a", "-o"]] {
        let ended = run(relift().args(arguments), folder.path());
        assert_eq!(ended.end, End::Exit(2), "{arguments:?}: {ended:?}");
    }
}
