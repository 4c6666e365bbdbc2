//! Instructions in forms that take fewer bytes: the program does the same, unwinders find their way from each of them, and few of the long forms are left.

mod support;

use std::path::Path;
use std::process::Command;

use iced_x86::{Code, Decoder, DecoderOptions, Instruction};
use object::{Object, ObjectSection};
use support::{End, STEPPING, SUCCESS, c_compilers, compile_text, run, shrink, skipped};

/// Small frames, vectors, numbers that are near each other, and a signal at each instruction, whose handler unwinds to `main`.
const STEPS: &str = r#"
struct pair { long a, b; double c, d; };
static struct pair pairs[8];
static char text[64];
static unsigned table[16];
static const char *volatile names[4];
__attribute__((noipa)) static long leaf(long x, long y, long z) { noted += x; return x * 3 + y - z; }
__attribute__((noipa)) static long deep(long x) { if (x > 40) return leaf(x, 1, 2); return leaf(x, 3, 4) + leaf(x, 4, 5); }
__attribute__((noipa)) static void clear(struct pair *p, int *q) {
    p->a = 0; p->b = 0; p->c = 0; p->d = 0;
    q[0] = 7; q[1] = 7; q[2] = 7; q[3] = 8; q[4] = 0; q[5] = 0;
}
__attribute__((noipa)) static double sums(const struct pair *p, int n) {
    double c = 0, d = 0;
    for (int i = 0; i < n; i++) c += p[i].c, d += p[i].d;
    return c * d;
}
__attribute__((noipa)) static long name(int i) { names[0] = "one"; names[1] = "two"; names[2] = text; names[3] = text + 16; return names[i & 3][0]; }
__attribute__((noipa)) static long three(long x) { long y = deep(x), z = deep(y & 63); return y ^ z; }
__attribute__((noinline)) static long traced(long i) {
    int q[6];
    struct pair p = pairs[i & 7];
    clear(&pairs[(i + 1) & 7], q);
    pairs[(i + 2) & 7] = p;
    p.c = i; pairs[i & 7] = p;
    table[i & 15] = 5; table[(i + 3) & 15] = 6;
    return three(i) + q[2] + (long)sums(pairs, 8) + name(i) + table[4];
}
int main(int count, char **arguments) {
    LOOK_FOR_MAIN(count)
    raise(SIGTRAP);
    STEP_THROUGH(long sum = traced(1))
    STEP_THROUGH(sum += traced(4))
    STEP_THROUGH(sum += traced(50))
    printf("%ld %ld, lost %ld\n", sum, (long)noted, (long)num_lost);
    return num_steps > 300 ? 42 : 1;
}
"#;

fn forms_in(told: &serde_json::Value) -> (i64, i64) {
    let technique = told["techniques"].as_array().into_iter().flatten().find(|technique| technique["technique"] == "forms");
    let field = |name: &str| technique.and_then(|technique| technique[name].as_i64()).expect("it is told");
    (field("count"), field("bytes"))
}

/// Instructions of the program's own code that are long for what they do.
fn long_ones(program: &Path) -> usize {
    let bytes = std::fs::read(program).expect("it was written");
    let file = object::File::parse(&*bytes).expect("it is an ELF file");
    let text = file.section_by_name(".text").expect("it has code");
    let is_long = |instruction: &Instruction| {
        let is_small_change = matches!(instruction.code(), Code::Sub_rm64_imm8) && instruction.immediate8to64() == 8;
        let is_prefixed =
            matches!(instruction.code(), Code::Movdqa_xmm_xmmm128 | Code::Movdqa_xmmm128_xmm | Code::Movapd_xmmm128_xmm);
        is_small_change && instruction.op0_register() == iced_x86::Register::RSP || is_prefixed
    };
    Decoder::with_ip(64, text.data().expect("it is in the file"), text.address(), DecoderOptions::NONE)
        .iter()
        .filter(is_long)
        .count()
}

#[test]
fn main_is_found_from_every_instruction_around_shorter_forms() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = folder.path();
    let text = format!("{STEPPING}{STEPS}");
    let (mut num_left, mut num_before) = (0, 0);
    for (compiler, level) in
        c_compilers().into_iter().flat_map(|compiler| ["-O1", "-O2", "-O3", "-Os"].map(|level| (compiler, level)))
    {
        let input = compile_text(&text, &[level, "-fPIE", "-pie", "-w"], folder, "input");
        let (output, told) = shrink(&input, &[], "output", folder);
        let warned = told["warnings"].to_string();
        assert!(!warned.contains("checker"), "{compiler} {level}: {warned}");
        let (count, bytes) = forms_in(&told);
        assert!(count >= 3 && bytes >= count, "{compiler} {level}: {told:#}");
        // What is folded or shared is a step more or less: the sums and the frames have to be right.
        let (before, after) = (run(&mut Command::new(&input), folder), run(&mut Command::new(&output), folder));
        assert_eq!(before.end, End::Exit(SUCCESS), "{before:?}");
        assert_eq!(before, after, "{compiler} {level}");
        assert!(after.stdout_text().ends_with("lost 0\n"), "{after:?}");
        let (without, told) = shrink(&input, &["--skip", "forms"], "without", folder);
        assert_eq!(forms_in(&told), (0, 0));
        num_left += long_ones(&output);
        num_before += long_ones(&without);
    }
    // `main` keeps a frame pointer.
    assert!(num_left * 2 <= num_before, "{num_left} of {num_before} long instructions are left");
}

#[test]
fn code_at_a_fixed_address_keeps_its_forms_and_is_made_once() {
    let folder = tempfile::tempdir().expect("a scratch folder can be made");
    let folder = folder.path();
    if c_compilers().is_empty() {
        return skipped("forms: there is no C compiler");
    }
    let text = format!("{STEPPING}{STEPS}");
    let input = compile_text(&text, &["-O2", "-fno-pie", "-no-pie", "-w", "-Wl,--emit-relocs"], folder, "input");
    let (output, told) = shrink(&input, &[], "output", folder);
    assert!(!told["warnings"].to_string().contains("checker"), "{told:#}");
    assert_eq!(forms_in(&told), (0, 0));
    let (before, after) = (run(&mut Command::new(&input), folder), run(&mut Command::new(&output), folder));
    assert_eq!(before.end, End::Exit(SUCCESS), "{before:?}");
    assert_eq!(before, after);
}
