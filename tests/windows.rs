//! Shrunk functions begin where few branches of loops lie on the ends of decode windows.

mod support;

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic};
use object::{Object, ObjectSection};
use support::{c_compilers, compile_text, run, shrink, skipped};

/// Functions of many lengths, each with a short loop.
fn loops() -> String {
    let mut text = String::from("#include <stdio.h>\n");
    for n in 0..120 {
        let before = "x = x * 5 + (x >> 7); ".repeat(n % 9);
        let step = ["x += a[i];", "if (a[i] > x) x = a[i];", "x ^= a[i] << 3; x += i;", "x = x * 31 + a[i];"][n % 4];
        write!(text, "__attribute__((noinline)) static long f{n}(const int *a, long n, long x) {{ {before}")
            .expect("a string takes all");
        writeln!(text, "for (long i = 0; i < n; i++) {{ {step} __asm__ volatile(\"\"); }} return x + {n}; }}")
            .expect("a string takes all");
    }
    text += "int main(void) { int a[64]; long x = 1; for (int i = 0; i < 64; i++) a[i] = i * 7919 % 101;\n";
    for n in 0..120 {
        writeln!(text, "x += f{n}(a, 64, x & 1023);").expect("a string takes all");
    }
    text + "printf(\"%ld\\n\", x); return 0; }\n"
}

/// Short branches backwards, and those of them that cross the end of 32 bytes or end there, with a comparison right before them.
fn loop_branches(program: &Path) -> (usize, usize) {
    let bytes = std::fs::read(program).expect("it was written");
    let file = object::File::parse(&*bytes).expect("it is an ELF file");
    let text = file.section_by_name(".text").expect("it has code");
    let mut decoder = Decoder::with_ip(64, text.data().expect("it is in the file"), text.address(), DecoderOptions::NONE);
    let (mut num_branches, mut num_exposed, mut fused) = (0, 0, None);
    for instruction in &mut decoder {
        let target = instruction.near_branch64();
        if instruction.flow_control() == FlowControl::ConditionalBranch
            && (1..100).contains(&instruction.ip().wrapping_sub(target))
        {
            let start = fused.unwrap_or(instruction.ip());
            num_branches += 1;
            num_exposed += usize::from(start / 32 != instruction.next_ip() / 32);
        }
        fused = matches!(instruction.mnemonic(), Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Add | Mnemonic::Sub)
            .then(|| instruction.ip());
    }
    (num_branches, num_exposed)
}

#[test]
fn branches_of_loops_are_kept_off_the_ends_of_windows_for_a_few_bytes() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = folder.path();
    if c_compilers().is_empty() {
        return skipped("decode windows: there is no C compiler");
    }
    let input = compile_text(&loops(), &["-O2", "-fPIE", "-pie", "-fno-tree-vectorize"], folder, "input");
    let (with, told) = shrink(&input, &[], "with", folder);
    let (without, _) = shrink(&input, &["--skip", "windows"], "without", folder);
    let expected = run(&mut Command::new(&input), folder);
    assert_eq!(run(&mut Command::new(&with), folder), expected);
    assert_eq!(run(&mut Command::new(&without), folder), expected);
    let ((num_with, exposed_with), (num_without, exposed_without)) = (loop_branches(&with), loop_branches(&without));
    assert!(num_with >= 100 && num_with == num_without, "{num_with} and {num_without} branches of loops");
    assert!(exposed_without >= 8 && exposed_with * 4 <= exposed_without, "{exposed_without} lie badly, then {exposed_with}");
    let techniques = told["techniques"].as_array().expect("a list");
    let cost = techniques.iter().find(|technique| technique["technique"] == "windows").expect("it is told");
    assert!((-400..=0).contains(&cost["bytes"].as_i64().expect("a number")), "{cost:#}");
}
