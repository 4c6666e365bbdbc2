//! What neither side wrote: a workload under valgrind, whose tools count what a program executes.
//!
//! **Method.** The workload is given a script in place of the program, which runs the program under a tool. A workload may run the program
//! several times: all its processes are added up. *Lackey* counts taken conditional jumps, of the whole process with its
//! libraries. *Callgrind* counts instructions, by address, from which come the pages that hold 99 % of what the program's own file executes.
//! *Cachegrind* simulates one cache, the same on every machine.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::run::{Bench, Subject};
use crate::shell::{self, Result};

/// 32 KB, 8 ways; last level 8 MB, 16 ways; lines of 64 bytes.
pub(super) const CACHE: [&str; 3] = ["--I1=32768,8,64", "--D1=32768,8,64", "--LL=8388608,16,64"];

/// What the judges say of one binary.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Judged {
    pub(super) taken_conditionals: u64,
    pub(super) instructions: u64,
    pub(super) first_level_misses: u64,
    pub(super) last_level_misses: u64,
    pub(super) hot_lines: u64,
    pub(super) hot_small_pages: u64,
    pub(super) hot_large_pages: u64,
}

impl Judged {
    fn fields(&mut self) -> [&mut u64; 7] {
        [
            &mut self.taken_conditionals,
            &mut self.instructions,
            &mut self.first_level_misses,
            &mut self.last_level_misses,
            &mut self.hot_lines,
            &mut self.hot_small_pages,
            &mut self.hot_large_pages,
        ]
    }
    fn to_text(mut self) -> String {
        self.fields().map(|field| field.to_string()).join(" ")
    }
    fn from_text(text: &str) -> Option<Self> {
        let mut judged = Judged::default();
        let mut words = text.split_whitespace();
        for field in judged.fields() {
            *field = words.next()?.parse().ok()?;
        }
        Some(judged)
    }
}

/// What the judges say of `binary` in the evaluation workload. Their counts belong to its bytes: what they said once is kept under a hash of binary and
/// workload, and only what was changed is run again. `None` if that is needed and counts are not wanted.
pub(super) fn judge(bench: &Bench, subject: &Subject<'_>, binary: &Path) -> Result<Option<Judged>> {
    let kept = subject.folder.join(format!("judged-{:032x}", identity(subject, binary)?));
    if let Some(judged) = fs::read_to_string(&kept).ok().and_then(|text| Judged::from_text(&text)) {
        return Ok(Some(judged));
    }
    if !bench.wants_counts {
        return Ok(None);
    }
    let judged = run_judges(bench, subject, binary)?;
    shell::write_file(&kept, judged.to_text().as_bytes())?;
    Ok(Some(judged))
}

/// A hash of all that decides what is counted: the binary, the program's workloads, the tools' settings.
fn identity(subject: &Subject<'_>, binary: &Path) -> Result<u128> {
    let mut hasher = xxhash_rust::xxh3::Xxh3::new();
    hasher.update(&shell::read_file(binary)?);
    hasher.update(CACHE.join(" ").as_bytes());
    let folder = subject.workload_folder();
    let mut files = shell::sorted_entries(&folder)?;
    files.push(folder.join("../data.sh"));
    for file in files {
        hasher.update(&shell::read_file(&file)?);
    }
    Ok(hasher.digest128())
}

/// What a binary executes in the evaluation workload, all of the process.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct References {
    pub(super) instructions: u64,
    /// Loads and stores.
    pub(super) data: u64,
}

/// Instructions and data references by cachegrind.
pub(super) fn references(bench: &Bench, subject: &Subject<'_>, binary: &Path) -> Result<References> {
    let mut references = References::default();
    for log in under(bench, subject, binary, &cachegrind())? {
        references.instructions += number_after(&log, "", "I   refs:").unwrap_or(0);
        references.data += number_after(&log, "", "D   refs:").unwrap_or(0);
    }
    if references.instructions == 0 || references.data == 0 {
        return Err(format!("valgrind counted nothing for {}", binary.display()));
    }
    Ok(references)
}

fn cachegrind() -> String {
    format!("--tool=cachegrind {} --cachegrind-out-file=/dev/null --log-file=LOGS.%p", CACHE.join(" "))
}

fn run_judges(bench: &Bench, subject: &Subject<'_>, binary: &Path) -> Result<Judged> {
    let mut judged = Judged::default();
    for log in under(bench, subject, binary, "--tool=lackey --basic-counts=yes --log-file=LOGS.%p")? {
        judged.taken_conditionals += number_after(&log, "Jccs:", "taken:").unwrap_or(0);
    }
    for log in under(bench, subject, binary, &cachegrind())? {
        judged.first_level_misses += number_after(&log, "", "I1  misses:").unwrap_or(0);
        judged.last_level_misses += number_after(&log, "", "LLi misses:").unwrap_or(0);
    }
    let callgrind = "-q --tool=callgrind --dump-instr=yes --dump-line=no --callgrind-out-file=LOGS.%p";
    let mut executions: HashMap<u64, u64> = HashMap::new();
    // Callgrind names the file behind all links.
    let own = fs::canonicalize(binary).map_err(|error| format!("cannot resolve {}: {error}", binary.display()))?;
    for dump in under(bench, subject, binary, callgrind)? {
        judged.instructions += read_callgrind(&dump, &own.to_string_lossy(), &mut executions);
    }
    judged.hot_lines = hot_parts(&executions, 64);
    judged.hot_small_pages = hot_parts(&executions, 4096);
    judged.hot_large_pages = hot_parts(&executions, 2 << 20);
    if judged.instructions == 0 || judged.taken_conditionals == 0 || judged.first_level_misses == 0 {
        return Err(format!("valgrind counted nothing for {}", binary.display()));
    }
    Ok(judged)
}

/// Runs the evaluation workload with the program under a tool; the texts that its processes left.
fn under(bench: &Bench, subject: &Subject<'_>, binary: &Path, options: &str) -> Result<Vec<String>> {
    let logs = subject.folder.join("logs");
    let _absent = fs::remove_dir_all(&logs);
    shell::create_folder(&logs)?;
    let options = options.replace("LOGS", &logs.join("log").to_string_lossy());
    let script = format!("#!/bin/sh\nexec valgrind {options} \"{}\" \"$@\"\n", binary.display());
    bench.run_workload(subject, "bench", &script)?;
    let paths: Vec<PathBuf> = shell::sorted_entries(&logs)?;
    paths.iter().map(|path| Ok(String::from_utf8_lossy(&shell::read_file(path)?).into_owned())).collect()
}

/// The first number behind `key`, on the first line with it that comes after a line with `section`.
fn number_after(text: &str, section: &str, key: &str) -> Option<u64> {
    let mut lines = text.lines().skip_while(|line| !line.contains(section));
    let line = lines.find(|line| line.contains(key))?;
    let rest = line[line.find(key)? + key.len()..].trim_start();
    let digits: String = rest.chars().take_while(|c| c.is_ascii_digit() || *c == ',').filter(|c| *c != ',').collect();
    digits.parse().ok()
}

/// Adds up a dump of callgrind: returns all executed instructions, and puts those of `own` into `executions` by address. Code that valgrind
/// knows no file for is the program's too: it looks at one code segment of each file, and BOLT makes two.
fn read_callgrind(dump: &str, own: &str, executions: &mut HashMap<u64, u64>) -> u64 {
    let mut names: HashMap<&str, &str> = HashMap::new();
    let (mut is_own, mut address, mut all, mut is_call) = (false, 0u64, 0u64, false);
    for line in dump.lines() {
        if let Some(object) = line.strip_prefix("ob=").or_else(|| line.strip_prefix("cob=")) {
            let (id, name) = object.split_once(' ').unwrap_or((object, ""));
            if !name.is_empty() {
                names.insert(id, name);
            }
            if line.starts_with("ob=") {
                is_own = names.get(id).is_some_and(|name| *name == own || *name == "???");
            }
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) {
            let mut fields = line.split(' ');
            address = moved(address, fields.next().unwrap_or_default());
            // The line behind `calls=` is what the callee cost.
            if std::mem::take(&mut is_call) {
                continue;
            }
            let count: u64 = fields.next().and_then(|count| count.parse().ok()).unwrap_or(0);
            all += count;
            if is_own {
                *executions.entry(address).or_default() += count;
            }
        }
    }
    all
}

/// An address of a dump: whole, or relative to the one before.
fn moved(address: u64, field: &str) -> u64 {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).unwrap_or(0),
        None => text.parse().unwrap_or(0),
    };
    match field.as_bytes().first() {
        Some(b'*') => address,
        Some(b'+') => address.wrapping_add(number(&field[1..])),
        Some(b'-') => address.wrapping_sub(number(&field[1..])),
        _ => number(field),
    }
}

/// How many parts of `bytes` bytes, at least, hold 99 % of the executed instructions.
fn hot_parts(executions: &HashMap<u64, u64>, bytes: u64) -> u64 {
    let mut parts: HashMap<u64, u64> = HashMap::new();
    for (address, count) in executions {
        *parts.entry(address / bytes).or_default() += count;
    }
    let mut counts: Vec<u64> = parts.into_values().collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let all: u64 = counts.iter().sum();
    let mut covered = 0;
    let mut number = 0;
    for count in counts {
        if covered * 100 >= all * 99 {
            break;
        }
        covered += count;
        number += 1;
    }
    number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_judges_said_is_read_as_it_was_kept() {
        let judged =
            Judged { taken_conditionals: 1, instructions: 2, first_level_misses: 3, last_level_misses: 4, ..Judged::default() };
        assert_eq!(judged.to_text(), "1 2 3 4 0 0 0");
        assert_eq!(Judged::from_text(&judged.to_text()).map(Judged::to_text), Some(judged.to_text()));
        assert!(Judged::from_text("1 2 3").is_none());
    }

    #[test]
    fn numbers_are_found_behind_their_words() {
        let log = "==1== taken: 9\n==1== Jccs:\n==1==   total:         21,159,866\n==1==   taken:         8,783,963 (42%)\n";
        assert_eq!(number_after(log, "Jccs:", "taken:"), Some(8_783_963));
        assert_eq!(number_after("==1== I1  misses:        1,017\n", "", "I1  misses:"), Some(1017));
        assert_eq!(number_after("nothing", "", "I1  misses:"), None);
    }

    #[test]
    fn a_dump_is_added_up_without_what_callees_cost() {
        let dump = "positions: instr\nevents: Ir\nsummary: 9\n\nob=(1) /bin/own\nfn=(1) main\n0x1000 5\n+4 2\ncob=(2) /lib/other\ncfn=(2) f\n\
                    calls=1 0x10\n* 90\n-4 1\nob=(2)\nfn=(2)\n0x10 3\nob=(1)\nfn=(1)\n0x2000 1\n";
        let mut executions = HashMap::new();
        assert_eq!(read_callgrind(dump, "/bin/own", &mut executions), 12);
        assert_eq!((executions.get(&0x1000), executions.get(&0x1004), executions.get(&0x2000)), (Some(&6), Some(&2), Some(&1)));
        assert_eq!(executions.len(), 3);
    }

    #[test]
    fn hot_parts_are_the_fewest_that_hold_99_of_100() {
        let executions = HashMap::from([(0, 980), (4096, 10), (8192, 5), (12288, 5)]);
        assert_eq!(hot_parts(&executions, 4096), 2);
        assert_eq!(hot_parts(&executions, 2 << 20), 1);
    }
}
