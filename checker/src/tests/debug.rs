//! What debuggers are told. Compilers and the linker are the witness: they make debug information for a program and for the same one with its functions in another order.

use std::process::Command;

use super::*;

const SOURCE: &str = r#"
struct node { int value; struct node *next; };
static struct node nodes[8];
static int bias = 3;
static inline int square(int x) { int y = x * x; if (y > 100) y -= x; return y; }
__attribute__((noinline)) int twice(int x) { return x + x + bias; }
__attribute__((noinline)) int apply(int (*with)(int), int x) { int first = with(x); return with(first + 1) + first; }
__attribute__((noinline)) int sum(struct node *list, int limit) {
    int total = 0;
    for (struct node *n = list; n; n = n->next) {
        int piece = square(n->value);
        if (piece > limit) {
            int rest = piece - limit;
            total += twice(rest);
        } else {
            total ^= apply(twice, piece);
        }
    }
    return total;
}
void _start(void) {
    for (int i = 0; i < 8; i++) {
        nodes[i].value = i;
        nodes[i].next = i ? &nodes[i - 1] : 0;
    }
    long status = sum(&nodes[7], 20) & 63;
    __asm__ volatile("syscall" : : "a"(60L), "D"(status) : "rcx", "r11", "memory");
    __builtin_trap();
}
"#;

/// Each compiler with each version of DWARF.
const KINDS: [(&str, &str); 8] = [
    ("gcc", "-gdwarf-2"),
    ("gcc", "-gdwarf-3"),
    ("gcc", "-gdwarf-4"),
    ("gcc", "-gdwarf-5"),
    ("clang", "-gdwarf-2"),
    ("clang", "-gdwarf-3"),
    ("clang", "-gdwarf-4"),
    ("clang", "-gdwarf-5"),
];

/// Sections in this order come in this order in the program.
const OTHER_ORDER: &str = "\
    .section .text.twice,\"ax\",@progbits\n    .section .text.sum,\"ax\",@progbits\n    .section .text._start,\"ax\",@progbits\n\
    .section .text.apply,\"ax\",@progbits\n";

fn run(command: &mut Command) -> Option<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let Ok(done) = command.output() else {
        skipped("debug information", &format!("no {program}"));
        return None;
    };
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    Some(())
}

/// The program as assembly, with remarks.
fn compile((compiler, version): (&str, &str)) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let (source, text) = (folder.path().join("a.c"), folder.path().join("a.s"));
    std::fs::write(&source, SOURCE).unwrap();
    let remarks = if compiler == "gcc" { "-dA" } else { "-fverbose-asm" };
    let options = [
        "-S",
        "-O2",
        "-g",
        version,
        remarks,
        "-ffunction-sections",
        "-fPIE",
        "-ffreestanding",
        "-fno-stack-protector",
        "-fasynchronous-unwind-tables",
    ];
    run(Command::new(compiler).args(options).arg(&source).arg("-o").arg(&text))?;
    Some(std::fs::read_to_string(text).unwrap())
}

fn assemble((compiler, version): (&str, &str), text: &str, option: &str) -> Option<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("a.s"), folder.path().join("a"));
    std::fs::write(&source, text).unwrap();
    let options = [version, "-nostdlib", "-nostartfiles", "-pie", "-Wl,--build-id=none", option];
    run(Command::new(compiler).args(options).arg(&source).arg("-o").arg(&program))?;
    Some(std::fs::read(program).unwrap())
}

/// The program, and the same with its functions in another order and `edit` done to the text.
fn pair(kind: (&str, &str), edit: impl Fn(&str) -> Option<String>) -> Option<(Vec<u8>, Vec<u8>)> {
    let text = compile(kind)?;
    let changed = edit(&text).unwrap_or_else(|| panic!("nothing to edit: {kind:?}"));
    Some((assemble(kind, &text, "-g")?, assemble(kind, &format!("{OTHER_ORDER}{changed}"), "-g")?))
}

fn debug_of(input: &[u8], output: &[u8]) -> DebugReport {
    let report = check(input, output).unwrap();
    assert!(report.is_ok(), "{}", report.summary(10));
    report.debug.unwrap()
}

#[test]
fn a_program_tells_what_it_tells() {
    for kind in KINDS {
        let Some(text) = compile(kind) else { continue };
        let Some(program) = assemble(kind, &text, "-g") else { continue };
        let debug = debug_of(&program, &program);
        assert_eq!((debug.different, debug.first()), (0, None), "{kind:?}");
        assert!(debug.compared > 80, "{kind:?}: {}", debug.compared);
    }
}

#[test]
fn functions_in_another_order_are_told_the_same() {
    for kind in KINDS {
        let Some((input, output)) = pair(kind, |text| Some(text.to_owned())) else { continue };
        assert!(check(&input, &output).unwrap().stats.moved_instructions > 40);
        let debug = debug_of(&input, &output);
        assert_eq!((debug.different, debug.first()), (0, None), "{kind:?}");
    }
}

#[test]
fn a_program_that_has_moved_under_its_debug_information_is_seen() {
    for kind in KINDS {
        let Some((input, output)) = pair(kind, |text| Some(text.to_owned())) else { continue };
        // The output's code with the input's sections for debuggers, which are as long.
        let mut stale = output.clone();
        let (before, after) = (Image::parse(&input).unwrap(), Image::parse(&output).unwrap());
        for section in before.sections.iter().filter(|section| section.name.starts_with(".debug_")) {
            let other = after.section(section.name).unwrap();
            let size = section.size.min(other.size) as usize;
            let (from, to) = (section.offset as usize, other.offset as usize);
            stale[to..to + size].copy_from_slice(&input[from..from + size]);
        }
        assert!(debug_of(&input, &stale).different > 40, "{kind:?}");
    }
}

/// The text with the line changed that is the `number`th for which `change` has another.
fn line(text: &str, number: usize, change: impl Fn(&str) -> Option<String>) -> Option<String> {
    let (index, new) = text.lines().enumerate().filter_map(|(index, line)| Some((index, change(line)?))).nth(number)?;
    let lines = text.lines().enumerate().map(|(at, line)| if at == index { &new[..] } else { line });
    Some(lines.flat_map(|line| [line, "\n"]).collect())
}

/// What assembles a number or an address, with `by` added, if the remark names this.
fn more(line: &str, remark: &str, by: &str) -> Option<String> {
    let (value, said) = line.split_once('#')?;
    said.trim().ends_with(remark).then(|| format!("{}{by} #{said}", value.trim_end()))
}

fn assert_seen_in(kinds: &[(&str, &str)], what: &str, edit: impl Fn(&str) -> Option<String>) {
    for &kind in kinds {
        let Some((input, output)) = pair(kind, &edit) else { continue };
        let debug = debug_of(&input, &output);
        let first = debug.first().unwrap_or_default();
        assert!(debug.different > 0 && first.contains(what), "{kind:?}: {} {first}", debug.different);
    }
}

#[test]
fn a_row_with_another_line_is_seen() {
    for number in [2, 9, 17] {
        assert_seen_in(&KINDS, "of the line table", |text| {
            line(text, number, |line| {
                let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
                let row = words.get(2).filter(|_| words[0] == ".loc")?.parse::<u32>().ok().filter(|&row| row > 0)?;
                words[2] = (row + 1).to_string();
                Some(words.join(" "))
            })
        });
    }
}

#[test]
fn a_row_that_is_no_place_to_stop_at_is_seen() {
    assert_seen_in(&KINDS, "of the line table", |text| {
        line(text, 1, |line| line.contains("is_stmt 1").then(|| line.replace("is_stmt 1", "is_stmt 0")))
    });
}

#[test]
fn a_function_that_lacks_its_last_instruction_is_seen() {
    // The last instruction of each has one byte or two.
    assert_seen_in(&KINDS, "ranges", |text| {
        let is_function = |line: &str| line.contains("LFE") || line.contains("Lfunc_end");
        line(text, 0, |line| is_function(line).then(|| more(line, "DW_AT_high_pc", "-2")).flatten())
    });
}

#[test]
fn a_function_that_begins_at_its_second_instruction_is_seen() {
    assert_seen_in(&KINDS[..4], "first address", |text| {
        line(text, 0, |line| line.contains("LFB").then(|| more(line, "DW_AT_low_pc", "+4")).flatten())
    });
}

#[test]
fn another_expression_of_a_location_list_is_seen() {
    for number in [0, 3] {
        assert_seen_in(&KINDS, "locations", |text| {
            let (before, lists) = text.split_at(text.find(".section\t.debug_loc")?);
            let changed = line(lists, number, |line| {
                let (_, said) = line.split_once('#')?;
                said.contains("DW_OP_reg").then(|| format!("    .byte 0x5d #{said}"))
            })?;
            Some(format!("{before}{changed}"))
        });
    }
}

#[test]
fn another_range_of_a_location_list_is_seen() {
    assert_seen_in(&KINDS[..4], "locations", |text| {
        let (before, lists) = text.split_at(text.find(".section\t.debug_loc")?);
        let changed = line(lists, 1, |line| {
            let (value, said) = line.split_once('#')?;
            (said.contains("Location list end address") && value.contains("LVL"))
                .then(|| format!("{}+1 #{said}", value.trim_end()))
        })?;
        Some(format!("{before}{changed}"))
    });
}

#[test]
fn another_return_address_of_a_call_is_seen() {
    assert_seen_in(&KINDS[3..4], "DW_AT_call_return_pc", |text| line(text, 1, |line| more(line, "DW_AT_call_return_pc", "+1")));
    assert_seen_in(&KINDS[7..], "DW_AT_call_return_pc", |text| {
        let (before, entries) = text.split_at(text.find(".section\t.debug_info")?);
        let is_return = |line: &&str| line.trim_end().ends_with("DW_AT_call_return_pc");
        // The first call returns where the second does.
        let other = entries.lines().filter(is_return).nth(1)?;
        Some(format!("{before}{}", line(entries, 0, |line| is_return(&line).then(|| other.to_owned()))?))
    });
}

#[test]
fn another_line_of_a_declaration_is_seen() {
    assert_seen_in(&KINDS, "says something else", |text| line(text, 4, |line| more(line, "DW_AT_decl_line", "+1")));
}

#[test]
fn another_address_of_a_unit_is_seen() {
    assert_seen_in(&KINDS[..4], "ranges", |text| {
        let (before, table) = text.split_at(text.find(".section\t.debug_aranges")?);
        Some(format!("{before}{}", line(table, 1, |line| more(line, "Length", "-8"))?))
    });
}

#[test]
fn a_name_that_is_lost_is_seen() {
    for kind in [KINDS[3], KINDS[7]] {
        let Some((input, mut output)) = pair(kind, |text| Some(text.to_owned())) else { continue };
        let place = Image::parse(&output).unwrap().section(".debug_str").unwrap().offset as usize;
        output[place + 2] ^= 1;
        let debug = debug_of(&input, &output);
        assert_eq!((debug.different, debug.first()), (1, Some(".debug_str is not what it was")));
    }
}

#[test]
fn nothing_is_compared_where_a_file_tells_nothing() {
    for kind in [KINDS[3], KINDS[7]] {
        let Some(text) = compile(kind) else { continue };
        let Some(program) = assemble(kind, &text, "-g") else { continue };
        let Some(stripped) = assemble(kind, &text, "-Wl,--strip-debug") else { continue };
        assert_eq!(check(&program, &stripped).unwrap().debug, None);
        assert_eq!(check(&stripped, &program).unwrap().debug, None);
    }
}

#[test]
fn damaged_debug_information_is_never_a_panic() {
    for kind in [KINDS[2], KINDS[3], KINDS[6], KINDS[7]] {
        let Some(text) = compile(kind) else { continue };
        let Some(file) = assemble(kind, &text, "-g") else { continue };
        let image = Image::parse(&file).unwrap();
        let areas: Vec<(usize, usize)> = image
            .sections
            .iter()
            .filter(|section| section.name.starts_with(".debug_") && section.name != ".debug_str")
            .map(|section| (section.offset as usize, section.size as usize))
            .collect();
        let mut random = 11u64;
        for round in 0..100 {
            let mut damaged = file.clone();
            for _ in 0..1 + round % 3 {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let (start, size) = areas[(random >> 40) as usize % areas.len()];
                damaged[start + (random >> 20) as usize % size] = if random >> 60 & 1 == 0 { 0xff } else { (random >> 52) as u8 };
            }
            // Whatever it says, it says it.
            assert!(check(&file, &damaged).unwrap().debug.is_some());
            assert!(check(&damaged, &file).unwrap().debug.is_some());
        }
    }
}
