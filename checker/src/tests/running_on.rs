//! Frame descriptions that end with a call: what follows is left out only if a compiler might have written it.

use super::layout::{TWICE, UNUSED, build, build_fixed, function};
use super::*;

/// A function in two frame descriptions. It has pushed a register where the first one ends, with a call.
#[derive(Copy, Clone)]
struct Parts<'a> {
    /// Before the call.
    before: &'a str,
    /// In the output, behind the call.
    behind: &'a str,
    /// Where the second frame description would begin.
    begin: &'a str,
    /// Rules with which it begins.
    rules: &'a str,
    /// Another function.
    other: &'a str,
}

const BEGIN: &str = ".cfi_startproc";
const RULES: &str = ".cfi_def_cfa_offset 16\n    .cfi_offset %rbx, -16";
const PARTS: Parts<'_> = Parts { before: "nop", behind: "", begin: BEGIN, rules: RULES, other: "nop" };
/// What is behind the call in an output that leaves the edge out.
const PARTED: &str = "    int3\n";

impl Parts<'_> {
    fn link(self, build: fn(&[&str], &str) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
        let Self { before, behind, begin, rules, other } = self;
        let end = if begin.is_empty() { "" } else { "    .cfi_endproc\n" };
        let classify = format!(
            "    .type classify, @function\nclassify:\n    .cfi_startproc\n    push %rbx\n    .cfi_def_cfa_offset 16\n    .cfi_offset %rbx, -16\n\
             \x20   mov %edi, %ebx\n    {before}\n    call twice\n    .cfi_endproc\n{behind}    {begin}\n    {rules}\n.Lrest:\n    lea 5(%rbx), %eax\n\
             \x20   pop %rbx\n    ret\n{end}    .size classify, . - classify\n"
        );
        build(&[&classify, TWICE, UNUSED, &function("other", &format!("    {other}\n    ret"))], ".long 0\n")
    }

    /// Whether the edge may be left out.
    fn may_end(self, build: fn(&[&str], &str) -> Option<Vec<u8>>) -> Option<bool> {
        let (input, output) = (self.link(build)?, Self { behind: PARTED, ..self }.link(build)?);
        let same = check(&input, &input).unwrap();
        assert!(same.is_ok(), "{}", same.summary(10));
        Some(check(&input, &output).unwrap().is_ok())
    }
}

#[test]
fn what_nothing_else_leads_to_is_reached_from_behind_the_call() {
    for build in [build, build_fixed] {
        for parts in [PARTS, Parts { begin: "", rules: "", ..PARTS }, Parts { before: "test %edi, %edi\n    je .Lrest", ..PARTS }]
        {
            let Some(may_end) = parts.may_end(build) else { return };
            assert!(!may_end, "{} {}", parts.before, parts.begin);
        }
    }
}

#[test]
fn where_something_else_leads_the_call_may_have_been_the_last_thing() {
    for build in [build, build_fixed] {
        for other in ["test %edi, %edi\n    je .Lrest", "lea .Lrest(%rip), %rax", "call .Lrest"] {
            let Some(may_end) = Parts { other, ..PARTS }.may_end(build) else { return };
            assert!(may_end, "{other}");
        }
    }
}

#[test]
fn where_the_rules_differ_the_call_was_the_last_thing_but_where_nothing_is_pushed_it_never_was() {
    for build in [build, build_fixed] {
        let Some(may_end) = Parts { rules: "", ..PARTS }.may_end(build) else { return };
        assert!(may_end);
        let bare = Parts { before: ".cfi_def_cfa_offset 8\n    .cfi_restore %rbx", rules: "", other: "call .Lrest", ..PARTS };
        assert_eq!(bare.may_end(build), Some(false));
    }
}
