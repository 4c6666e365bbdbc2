//! Tables between functions that name others by their distance, as GHC keeps before its entries.

mod support;

use std::process::Command;

use support::{End, SUCCESS, compile_text, every_form_does_the_same, installed, relift_succeeds, run, skipped};

/// Entries have a table before them, which begins with a zero: by how far from the entry the function is that goes on with the work. None of it has unwind entries, as all that GHC makes; the functions of C do, and one stands before each table.
const PROGRAM: &str = r#"
typedef int function(int);
extern function entry, other, slow_entry, slow_other, first, second;
__asm__(".text\n.macro begin name\n.globl \\name\n.type \\name, @function\n\\name:\n.endm\n"
    ".macro described name, number\n.balign 8\nbegin \\name\n.cfi_startproc\nlea \\number(%rdi), %eax\nret\n.cfi_endproc\n.size \\name, . - \\name\n.endm\n"
    "described first, 11\n.balign 8\n.quad 0, 0\n.quad slow_entry - entry\n.quad 0x20000000e\nbegin entry\nlea 1(%rdi), %eax\nret\n.size entry, . - entry\n"
    ".balign 8\nbegin slow_entry\nlea 3(%rdi), %eax\nret\n.size slow_entry, . - slow_entry\n"
    "described second, 13\n.balign 8\n.quad 0, 0\n.quad slow_other - other\n.quad 0x20000000e\nbegin other\nlea 5(%rdi), %eax\nret\n.size other, . - other\n"
    ".balign 8\nbegin slow_other\nlea 7(%rdi), %eax\nret\n.size slow_other, . - slow_other\n");
static int (*volatile entries[])(int) = {entry, other};
__attribute__((noinline)) int enter(function *entry, int x) {
    function *slow = (function *)((const char *)entry + ((const long *)entry)[-2]);
    long zeros = ((const long *)entry)[-3] | ((const long *)entry)[-4];
    return zeros ? 1 : entry(x) * 100 + slow(x);
}
int main(void) { return enter(entries[0], 1) + enter(entries[1], 1) == 204 + 608 && slow_entry(0) + slow_other(0) == 10 && first(0) + second(0) == 24 ? 42 : 1; }
"#;

#[test]
fn functions_that_tables_between_functions_name_stay_and_others_move() {
    if !installed("gcc") {
        return skipped("there is no gcc");
    }
    let scratch = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = scratch.path();
    for flags in [["-O2", "-fPIE", "-pie", "-rdynamic"], ["-O2", "-fPIE", "-static-pie", "-w"], ["-O2", "-fPIE", "-pie", "-s"]] {
        let program = compile_text(PROGRAM, &flags, folder, "program");
        assert_eq!(run(&mut Command::new(&program), folder).end, End::Exit(SUCCESS));
        every_form_does_the_same(&program, &["1", "2", "3", "4"], folder);
        let said = relift_succeeds(support::relift().args(["inspect", "--json", "-v"]).arg(&program), folder);
        let report: serde_json::Value = serde_json::from_slice(&said.stdout).expect("--json prints JSON");
        let functions = &report["functions"];
        assert!(functions["moved"].as_u64() > Some(0), "{flags:?}: {functions}");
        assert!(functions["pinned"]["unknown-metadata"].as_u64() > Some(0), "{flags:?}: {functions}");
    }
}
