//! `cargo xtask throughput`: how fast `perf.data` is read, beside BOLT's `perf2bolt` on the same file.
//!
//! **Method.** The file is made, not recorded: a machine in the cloud has no branch stacks to record. It holds what `perf record -b` writes, a mapping of the program and
//! samples with stacks of 32 branches each; every stack is a walk over the taken branches of a profile, each by its count, from a branch's target to the next source behind it. Both
//! programs read the file and write `fdata`. relift does it alone; `perf2bolt` starts `perf script`, whose text it reads.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;

use crate::e2e;
use crate::shell::{self, Result};

/// Entries of a branch stack, as the last level of an Intel processor keeps them.
const STACK: usize = 32;
const SEGMENT_PAGES: u64 = 4096;

#[derive(Debug, Args)]
pub(crate) struct ThroughputArgs {
    /// The program; with its symbols and linked with --emit-relocs, or BOLT refuses it
    program: PathBuf,
    /// A profile of it with branches, of any kind that relift reads
    #[arg(long)]
    profile: PathBuf,
    /// Size of the file
    #[arg(long, default_value_t = 200)]
    megabytes: usize,
    /// Where the file and what is read from it go; `target/throughput` if not given
    #[arg(long)]
    directory: Option<PathBuf>,
    /// The relift program; built from this repository if not given
    #[arg(long)]
    relift: Option<PathBuf>,
    #[arg(long, default_value = "perf2bolt-22")]
    perf2bolt: String,
}

pub(crate) fn run(args: &ThroughputArgs) -> Result {
    let directory = args.directory.clone().unwrap_or_else(|| crate::repository_root().join("target/throughput"));
    shell::create_folder(&directory)?;
    let absolute = |path: &Path| std::path::absolute(path).map_err(|error| format!("cannot resolve {}: {error}", path.display()));
    let (program, directory) = (absolute(&args.program)?, absolute(&directory)?);
    let relift = match &args.relift {
        Some(path) => absolute(path)?,
        None => e2e::build_relift()?,
    };
    let addresses = directory.join("branches");
    let mut convert = Command::new(&relift);
    convert.args(["profile", "convert", "--format", "preaggregated", "--program"]).arg(&program).arg(&args.profile);
    shell::run(convert.arg("-o").arg(&addresses))?;
    let branches = read_branches(&String::from_utf8_lossy(&shell::read_file(&addresses)?));
    let recorded = directory.join("perf.data");
    let program_bytes = shell::read_file(&program)?;
    write_recording(&recorded, &program, &program_bytes, &branches, args.megabytes << 20)?;
    for (name, command) in
        [("relift", vec![relift.display().to_string(), "perf2bolt".into()]), ("perf2bolt", vec![args.perf2bolt.clone()])]
    {
        let mut words = command;
        words.extend(["-p".into(), recorded.display().to_string(), "-o".into(), directory.join(name).display().to_string()]);
        words.push(program.display().to_string());
        let script =
            r#"TIMEFORMAT='%3R %3U %3S'; { time command time -f %M "$@" >/dev/null 2>"$0.said"; } 2>&1; tail -n 1 "$0.said""#;
        let said = shell::run(Command::new("bash").args(["-c", script]).arg(directory.join(name)).args(&words))?;
        let text = String::from_utf8_lossy(&said.stdout).into_owned();
        let numbers: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [wall, user, system, kilobytes] = numbers[..] else { return Err(format!("{name} was not timed: {text}")) };
        let (megabytes, processor) = (args.megabytes as f64 * 1.048_576, user + system);
        shell::say(&format!(
            "{name:<10} {:7.1} MB a second of processor time ({processor:.2} s), {:7.1} MB/s by the clock ({wall:.2} s), {:.0} MB of memory",
            megabytes / processor,
            megabytes / wall,
            kilobytes / 1024.0
        ));
    }
    Ok(())
}

/// Source, target and count of taken branches, by source.
fn read_branches(text: &str) -> Vec<(u64, u64, u64)> {
    let address = |word: &str| u64::from_str_radix(word, 16).ok();
    let branch = |line: &str| {
        let mut words = line.strip_prefix("B ")?.split(' ');
        Some((address(words.next()?)?, address(words.next()?)?, words.next()?.parse().ok()?))
    };
    let mut branches: Vec<_> = text.lines().filter_map(branch).collect();
    branches.sort_unstable();
    branches
}

/// A random number, the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % limit.max(1)
    }
}

/// One record: its header and its body.
fn record(kind: u32, misc: u16, body: &[u64], text: &[u8]) -> Vec<u8> {
    let mut text = text.to_vec();
    if !text.is_empty() {
        text.resize((text.len() + 1).next_multiple_of(8), 0);
    }
    let size = (8 + body.len() * 8 + text.len()) as u16;
    let mut bytes = Vec::with_capacity(usize::from(size));
    bytes.extend(kind.to_le_bytes());
    bytes.extend(misc.to_le_bytes());
    bytes.extend(size.to_le_bytes());
    bytes.extend(body.iter().flat_map(|word| word.to_le_bytes()));
    bytes.extend(text);
    bytes
}

/// `perf.data` as the kernel's documentation has it: header, one event with its attributes, records, no features.
fn write_recording(path: &Path, program: &Path, image: &[u8], branches: &[(u64, u64, u64)], bytes: usize) -> Result {
    const SAMPLE_TYPE: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 8 | 1 << 11;
    const USER: u16 = 2;
    if branches.is_empty() {
        return Err("the profile holds no branches".into());
    }
    let elf_type = image.get(16).copied().unwrap_or(0);
    let base: u64 = if elf_type == 3 { 0x5555_5555_4000 } else { 0 };
    let pid = 4242u64 | 4242 << 32;
    let mut records = Vec::with_capacity(bytes + 4096);
    records.extend(record(3, 1 << 13, &[pid], program.file_name().map(|name| name.as_encoded_bytes()).unwrap_or_default()));
    for (offset, address, len) in executable_segments(image) {
        let body = [pid, base + address, len, offset, 0, 0, 0, 5 | 2 << 32];
        records.extend(record(10, USER, &body, program.as_os_str().as_encoded_bytes()));
    }
    let mut random = Random(1);
    let hot = by_count(branches);
    let mut time = 1_000_000u64;
    while records.len() < bytes {
        time += 1000;
        let stack = walk(branches, &hot, &mut random);
        let mut body = vec![base + stack[0].1, pid, time, 1000, stack.len() as u64];
        // The newest comes first.
        for (from, to) in stack {
            body.extend([base + from, base + to, 2]);
        }
        records.extend(record(9, USER, &body, &[]));
    }
    let mut attribute = [0u64; 16];
    attribute[0] = 128 << 32;
    (attribute[2], attribute[3], attribute[9]) = (1000, SAMPLE_TYPE, 1 | 1 << 3);
    // The header, then the ids of the event, which has none, then its attributes.
    let (attributes_at, data_at) = (104u64, 104 + 144u64);
    let mut head = b"PERFILE2".to_vec();
    for word in [104, 144, attributes_at, 144, data_at, records.len() as u64, 0, 0, 0, 0, 0, 0] {
        head.extend(word.to_le_bytes());
    }
    head.extend(attribute.iter().chain(&[data_at, 0]).flat_map(|word| word.to_le_bytes()));
    let mut file = std::fs::File::create(path).map_err(|error| format!("cannot make {}: {error}", path.display()))?;
    file.write_all(&head)
        .and_then(|()| file.write_all(&records))
        .map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// File offset, address and length of what is mapped as code, in whole pages.
fn executable_segments(image: &[u8]) -> Vec<(u64, u64, u64)> {
    let word = |at: u64| image.get(at as usize..at as usize + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes);
    let (at, number) = (word(32), word(56) & 0xffff);
    let headers = (0..number).map(|index| at + index * 56);
    let is_code = |at: &u64| word(*at) & 0xffff_ffff == 1 && word(*at) >> 32 & 1 == 1;
    let page = |value: u64| value & !(SEGMENT_PAGES - 1);
    let segment = |at: u64| {
        (page(word(at + 8)), page(word(at + 16)), page(word(at + 32) + word(at + 16) % SEGMENT_PAGES + SEGMENT_PAGES - 1))
    };
    headers.filter(is_code).map(segment).collect()
}

/// The running sums of the counts, of which a random one finds a branch by its share.
fn by_count(branches: &[(u64, u64, u64)]) -> Vec<u64> {
    let mut sum = 0;
    let add = |(_, _, count): &(u64, u64, u64)| {
        sum += count;
        sum
    };
    branches.iter().map(add).collect()
}

/// Branches one after the other, the newest first.
fn walk(branches: &[(u64, u64, u64)], hot: &[u64], random: &mut Random) -> Vec<(u64, u64)> {
    const STRAIGHT_MAX: u64 = 400;
    let total = hot.last().copied().unwrap_or(0);
    let start = |random: &mut Random| {
        let wanted = random.below(total);
        hot.partition_point(|sum| *sum <= wanted)
    };
    let mut at = start(random);
    let mut stack = Vec::with_capacity(STACK);
    while stack.len() < STACK {
        let (from, to, _) = branches[at.min(branches.len() - 1)];
        stack.push((from, to));
        // The first source behind the target, or now and then the one behind that; a call out of the program starts anew.
        let next = branches.partition_point(|(source, _, _)| *source < to) + random.below(2) as usize * random.below(2) as usize;
        let is_near = branches.get(next).is_some_and(|(source, _, _)| *source - to.min(*source) < STRAIGHT_MAX);
        at = if is_near { next } else { start(random) };
    }
    stack.reverse();
    stack
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_are_read_by_source_and_walked_from_target_to_source() {
        let branches = read_branches("E x\nB 40 10 5 0\nB 20 30 7 0\nF 1 2 3\n");
        assert_eq!(branches, [(0x20, 0x30, 7), (0x40, 0x10, 5)]);
        let stack = walk(&branches, &by_count(&branches), &mut Random(3));
        assert_eq!(stack.len(), STACK);
        assert!(stack.iter().all(|pair| [(0x20, 0x30), (0x40, 0x10)].contains(pair)));
    }

    #[test]
    fn a_record_is_padded_and_says_how_long_it_is() {
        let bytes = record(10, 2, &[1, 2], b"12345678");
        assert_eq!((bytes.len(), bytes[4], bytes[6]), (40, 2, 40));
    }
}
