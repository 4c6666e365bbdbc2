//! Calls of functions of the file through words that never change, as code that was compiled without a procedure linkage table makes them.

mod support;

use std::path::{Path, PathBuf};

use iced_x86::{Code, Decoder, DecoderOptions};
use object::{Object, ObjectSection};
use support::{compile, every_form_does_the_same, installed, relift, relift_succeeds, rewritten_does_the_same, skipped};

/// Functions of two files, of which each calls the other's, one that a pointer leads to, one that another file may take over, and one whose word the program writes.
const FIRST: &str = r#"
#include <stdio.h>
int second(int), third(int), pointed(int);
int first(int x) { return x > 40 ? x : second(x + 3) + third(x); }
int (*volatile pointer)(int) = pointed;
static int one(int x) { return x + 1; }
static int two(int x) { return x + 2; }
static int (*changing)(int) = one;
__attribute__((noinline)) void change(void) { changing = two; }
int main(void) {
    int sum = first(1) + second(2) * third(3) + pointer(4) + changing(5);
    change();
    for (int i = 0; i < 5; i++) sum += third(i) + pointed(i) + changing(i);
    printf("%d %d\n", sum, pointer == pointed);
    return 0;
}
"#;
const SECOND: &str = r#"
int first(int);
int second(int x) { return first(x * 2) - 1; }
int third(int x) { return x * 5 + second(x + 20); }
int pointed(int x) { return third(x) ^ x; }
"#;

fn built(flags: &[&str], folder: &Path) -> PathBuf {
    let (first, second, program) = (folder.join("first.c"), folder.join("second.c"), folder.join("program"));
    std::fs::write(&first, FIRST).and_then(|()| std::fs::write(&second, SECOND)).expect("the scratch folder can be written");
    let flags = [&["-O2", "-fno-plt", "-Wl,-z,relro", "-w"], flags].concat();
    compile("gcc", &flags, &[&first, &second], &program).unwrap_or_else(|error| panic!("{error}"));
    program
}

/// How many calls a program makes through memory that it names by its address.
fn calls_through_words(program: &Path) -> usize {
    let bytes = std::fs::read(program).expect("the program can be read");
    let file = object::File::parse(&*bytes).expect("it is an ELF file");
    let code = file.sections().filter(|section| section.name().is_ok_and(|name| name.starts_with(".text")));
    let count = |section: object::Section<'_, '_>| {
        let data = section.data().unwrap_or_default();
        let calls = Decoder::with_ip(64, data, section.address(), DecoderOptions::NONE).into_iter();
        calls.filter(|call| call.code() == Code::Call_rm64 && call.is_ip_rel_memory_operand()).count()
    };
    code.map(count).sum()
}

/// The count of a technique or a transform in a report.
fn count(form: &[&str], program: &Path, output: &Path, folder: &Path) -> u64 {
    let said = relift_succeeds(relift().args(form).args(["--verify", "--json"]).arg(program).arg("-o").arg(output), folder);
    let report: serde_json::Value = serde_json::from_slice(&said.stdout).expect("--json prints JSON");
    let technique = report["techniques"].as_array().into_iter().flatten().find(|saving| saving["technique"] == "direct-calls");
    let sites = &report["transforms"]["direct-calls"]["sites"];
    technique.map_or(sites, |saving| &saving["count"]).as_u64().unwrap_or(0)
}

const RELOCATABLE: [&str; 4] = ["-fPIE", "-pie", "-Wl,--no-relax", "-Wl,-z,now"];

#[test]
fn calls_through_words_that_never_change_are_direct_in_all_outputs() {
    if !installed("gcc") {
        return skipped("calls through words: there is no gcc");
    }
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    for more in [&["-g"][..], &["-s"], &["-Wl,--emit-relocs"], &["-fcf-protection"]] {
        let program = built(&[&RELOCATABLE, more].concat(), folder.path());
        let output = folder.path().join("output");
        let before = calls_through_words(&program);
        for form in [&["optimize"][..], &["optimize", "--shuffle", "3"], &["shrink", "--skip", "outline,tails"]] {
            let direct = count(form, &program, &output, folder.path());
            assert!(direct >= 9, "{more:?} {form:?}: {direct}");
            assert_eq!(calls_through_words(&output) + direct as usize, before, "{more:?} {form:?}");
            let without = [form, &["--skip", "direct-calls"]].concat();
            assert_eq!(count(&without, &program, &output, folder.path()), 0, "{more:?} {form:?}");
            assert_eq!(calls_through_words(&output), before, "{more:?} {form:?}");
        }
        every_form_does_the_same(&program, &["1", "2"], folder.path());
        rewritten_does_the_same(&program, &["shrink"], folder.path());
    }
}

#[test]
fn words_that_may_change_or_that_others_may_define_are_called_through() {
    if !installed("gcc") {
        return skipped("calls through words: there is no gcc");
    }
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let output = folder.path().join("output");
    for flags in [
        &["-fPIE", "-pie", "-Wl,--no-relax", "-Wl,-z,norelro"][..],
        &["-fPIC", "-shared", "-Wl,--no-relax", "-Wl,-z,now"],
        &["-fno-pie", "-no-pie", "-Wl,--no-relax", "-Wl,-z,now"],
    ] {
        let program = built(flags, folder.path());
        assert!(calls_through_words(&program) > 5, "{flags:?}");
        for form in [&["optimize"][..], &["shrink", "--skip", "outline,tails"]] {
            assert_eq!(count(form, &program, &output, folder.path()), 0, "{flags:?} {form:?}");
        }
    }
}
