//! Branches that go by way of a jump to the same place: the program does the same, and unwinders find the way from each single instruction.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use object::{Object, ObjectSection};
use support::{End, STEPPING, SUCCESS, compile_text, installed, relift, run, skipped};

/// Each instruction of `traced` and of what it calls raises a signal, whose handler unwinds to `main` from there. The functions leave for three far places from many, with and without a frame.
const STEPS: &str = r#"
__attribute__((noinline)) static long step(long a, long b) { noted += a; return a * 3 + b; }
#define ASK(n) if (x == n * 1001) goto fail; x = x * 5 + n; if (y == n * 77777) goto other; y ^= x; if ((x & 255) == n) return step(-n, y);
#define ASKS(n) ASK(n + 1) ASK(n + 2) ASK(n + 3) ASK(n + 4) if (__builtin_expect((x & 3) == 3, 1)) return step(n, y - n);
#define F(n) __attribute__((noinline)) static long f##n(long x, long y) { \
    if (x == 5) return y; \
    ASKS(n) ASKS(n + 5) ASKS(n + 10) ASKS(n + 15) ASKS(n + 20) ASKS(n + 25) ASKS(n + 30) \
    return x + y; fail: noted = 1; noted += n; return step(n, 2); other: noted = 2; noted -= n; return step(n, 3); }
F(1) F(37) F(74)
__attribute__((noinline)) static long traced(long i) { return f1(i, 2) + f37(i * 38038, 3) + f74(i, 4) + f1(2002 * (i == 2), 7); }
int main(int count, char **arguments) {
    LOOK_FOR_MAIN(count)
    long sum = 0;
    for (long i = 0; i < 9; i++) {
        STEP_THROUGH(sum += traced(i))
    }
    printf("%ld %ld\n%ld\n%ld\n", sum, (long)noted, (long)num_lost, (long)num_steps);
    return 42;
}
"#;

fn stepping() -> String {
    format!("{STEPPING}{STEPS}")
}

/// What a program prints, without the number of steps, and that number.
fn printed(program: &Path, folder: &Path) -> (Vec<String>, u64) {
    let found = run(&mut Command::new(program), folder);
    assert_eq!(found.end, End::Exit(SUCCESS), "{found:?}");
    let mut lines: Vec<String> = found.stdout_text().lines().map(str::to_owned).collect();
    let num_steps = lines.pop().and_then(|line| line.parse().ok()).expect("it counts its steps");
    (lines, num_steps)
}

/// The shrunk program, and what the report says of relays.
fn shrink(input: &Path, name: &str, options: &[&str], folder: &Path) -> (PathBuf, serde_json::Value) {
    let (output, report) = support::shrink(input, options, name, folder);
    let techniques = report["techniques"].as_array().expect("a list");
    (output, techniques.iter().find(|technique| technique["technique"] == "relays").cloned().unwrap_or_default())
}

#[test]
fn unwinders_find_the_way_from_each_instruction_of_a_relay() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = folder.path();
    for (compiler, flags) in [
        ("gcc", &["-O2"][..]),
        ("gcc", &["-O1", "-fomit-frame-pointer"]),
        ("gcc", &["-Os"]),
        ("gcc", &["-O2", "-fno-omit-frame-pointer"]),
    ] {
        if !installed(compiler) {
            return skipped("unwinding from every instruction: there is no gcc");
        }
        let flags = [flags, &["-fwrapv", "-fPIE", "-pie", "-w", "-Wl,-z,now"]].concat();
        let input = compile_text(&stepping(), &flags, folder, "input");
        let (before, num_before) = printed(&input, folder);
        assert_eq!(before[1], "0", "{flags:?}: the compiler's rows are right");
        let (output, told) = shrink(&input, "output", &["--slower", "100"], folder);
        assert!(told["count"].as_u64() >= Some(60) && told["bytes"].as_u64() >= Some(150), "{flags:?}: {told:#}");
        let (after, num_after) = printed(&output, folder);
        assert_eq!(after, before, "{flags:?}");
        assert!(num_after.abs_diff(num_before) * 20 < num_before, "{flags:?}: {num_before} steps, then {num_after}");
        let (without, told) = shrink(&input, "without", &["--slower", "100", "--skip", "relays"], folder);
        assert!(told.is_null() || told["count"] == 0, "{told:#}");
        let len = |path: &Path| std::fs::metadata(path).expect("it was written").len();
        assert!(len(&output) <= len(&without), "{flags:?}");
    }
}

#[test]
fn the_checker_sees_a_branch_that_goes_by_way_of_another_jump() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = folder.path();
    let input = compile_text(&stepping(), &["-O1", "-fwrapv", "-fPIE", "-pie", "-w"], folder, "input");
    let (output, _) = shrink(&input, "output", &["--slower", "100"], folder);
    let right = std::fs::read(&output).expect("it was written");
    let file = object::File::parse(&*right).expect("it is an ELF file");
    let (start, size) = file.section_by_name(".text").and_then(|text| text.file_range()).expect("it has code");
    let text = start as usize..(start + size) as usize;
    // Conditional branches of two bytes to jumps of five: each is led to another such jump in reach.
    let is_long_jump = |at: usize| right.get(at) == Some(&0xe9) && text.contains(&at);
    let target = |at: usize| (at + 2).wrapping_add_signed(right[at + 1] as i8 as isize);
    let leads = |at: &usize| matches!(right[*at], 0x70..=0x7f) && is_long_jump(target(*at));
    let mut num_wrong = 0;
    for at in text.clone().filter(leads).step_by(7).take(12) {
        let reach = (at + 2).saturating_sub(128)..at + 130;
        let destination = |at: usize| {
            let displacement = i32::from_le_bytes(right[at + 1..at + 5].try_into().expect("four bytes"));
            (at + 5).wrapping_add_signed(displacement as isize)
        };
        let is_other = |&other: &usize| {
            is_long_jump(other) && text.contains(&destination(other)) && destination(other) != destination(target(at))
        };
        let Some(other) = reach.clone().find(is_other) else { continue };
        let mut wrong = right.clone();
        wrong[at + 1] = (other as isize - at as isize - 2) as i8 as u8;
        let path = folder.join("wrong");
        std::fs::write(&path, &wrong).expect("the scratch folder can be written");
        let found = run(relift().arg("check").arg(&input).arg(&path), folder);
        assert_eq!(found.end, End::Exit(1), "the branch at {at:#x} to {other:#x}: {found:?}");
        num_wrong += 1;
    }
    assert!(num_wrong >= 3, "{num_wrong}");
}
