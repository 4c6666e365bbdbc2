//! Files made byte by byte, as the kernel's documentation describes them.

use lifter::FileOffset;
use lifter::elf::image::Segment;
use proptest::prelude::*;

use super::*;
use crate::testing::empty_image;

const IP: u64 = 1;
const TID: u64 = 2;
const TIME: u64 = 4;
const CALLCHAIN: u64 = 1 << 5;
const PERIOD: u64 = 1 << 8;
const BRANCH_STACK: u64 = 1 << 11;
const IDENTIFIER: u64 = 1 << 16;
const SAMPLE_ID_ALL: u64 = 1 << 18;

static BUILD_ID: [u8; 20] = [7; 20];

/// Text of 0x1000 bytes at file offset 0x1000 and address 0x401000.
fn image() -> Image<'static> {
    let mut image = empty_image();
    image.bytes = &BUILD_ID;
    image.build_id = Some((FileOffset(0), 20));
    image.segments.push(Segment {
        p_type: 1,
        p_flags: 5,
        p_offset: FileOffset(0x1000),
        p_vaddr: Va(0x40_1000),
        p_filesz: 0x1000,
        p_memsz: 0x1000,
        p_align: 0x1000,
    });
    image
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

fn record(kind: u32, misc: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = kind.to_le_bytes().to_vec();
    bytes.extend(misc.to_le_bytes());
    bytes.extend((8 + body.len() as u16).to_le_bytes());
    bytes.extend(body);
    bytes
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn path(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().to_vec();
    bytes.resize((bytes.len() + 1).next_multiple_of(8), 0);
    bytes
}

/// A mapping of the text, followed by the time, as `sample_id_all` with `TIME` has it.
fn mmap2(pid: u32, start: u64, name: &str, build_id: Option<[u8; 20]>, time: u64) -> Vec<u8> {
    let mut body = words(&[pair(pid, pid), start, 0x1000, 0x1000]);
    let mut id = vec![0; 24];
    if let Some(build_id) = build_id {
        id[0] = 20;
        id[4..].copy_from_slice(&build_id);
    }
    body.extend(id);
    body.extend(words(&[pair(5, 2)]));
    body.extend(path(name));
    body.extend(words(&[time]));
    record(10, if build_id.is_some() { 1 << 14 } else { 0 } | 2, &body)
}

fn attribute(sample_type: u64) -> Vec<u8> {
    let mut fields = vec![0u64; 16];
    fields[0] = pair(1, 128);
    fields[3] = sample_type;
    fields[5] = SAMPLE_ID_ALL;
    words(&fields)
}

fn file(sample_type: u64, records: &[Vec<u8>]) -> Vec<u8> {
    let data: Vec<u8> = records.concat();
    let (attributes_at, attributes_len) = (104u64, 144u64);
    let mut header = b"PERFILE2".to_vec();
    header.extend(words(&[
        104,
        144,
        attributes_at,
        attributes_len,
        attributes_at + attributes_len,
        data.len() as u64,
        0,
        0,
        0,
        0,
        0,
        0,
    ]));
    header.extend(attribute(sample_type));
    header.extend(words(&[0, 0]));
    header.extend(data);
    header
}

fn in_pipe_mode(sample_type: u64, records: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = b"PERFILE2".to_vec();
    bytes.extend(words(&[16]));
    bytes.extend(record(64, 0, &attribute(sample_type)));
    bytes.extend(records.concat());
    bytes
}

const PLAIN: u64 = IP | TID | TIME | PERIOD;

fn plain_sample(pid: u32, time: u64, ip: u64) -> Vec<u8> {
    record(9, 2, &words(&[ip, pair(pid, pid), time, 250_000]))
}

fn addresses(bytes: &[u8]) -> Vec<(Va, u64)> {
    read(bytes, &image(), "prog").unwrap().samples.addresses
}

#[test]
fn load_addresses_of_several_processes_cancel_out() {
    let records = [
        mmap2(1, 0x5555_0000, "/bin/prog", None, 1),
        mmap2(2, 0x7777_0000, "/bin/prog", None, 1),
        plain_sample(1, 5, 0x5555_0123),
        plain_sample(2, 5, 0x7777_0123),
        plain_sample(3, 5, 0x7777_0123),
        plain_sample(2, 5, 0x5555_0123),
    ];
    let bytes = file(PLAIN, &records);
    assert_eq!(addresses(&bytes), [(Va(0x40_1123), 2)]);
    let found = read(&bytes, &image(), "prog").unwrap();
    assert_eq!((found.num_samples, found.num_processes, found.samples.total, found.samples.located), (4, 2, 4, 2));
}

#[test]
fn pipe_mode_says_the_same() {
    let records = [mmap2(1, 0x5555_0000, "/bin/prog", None, 1), plain_sample(1, 5, 0x5555_0123)];
    assert_eq!(addresses(&in_pipe_mode(PLAIN, &records)), [(Va(0x40_1123), 1)]);
}

#[test]
fn a_build_id_outweighs_the_name() {
    let records = [
        mmap2(1, 0x5555_0000, "/bin/prog", Some([9; 20]), 1),
        mmap2(1, 0x6666_0000, "/bin/renamed", Some(BUILD_ID), 1),
        plain_sample(1, 5, 0x5555_0123),
        plain_sample(1, 5, 0x6666_0456),
    ];
    assert_eq!(addresses(&file(PLAIN, &records)), [(Va(0x40_1456), 1)]);
}

#[test]
fn another_build_is_refused_by_name() {
    let records = [mmap2(1, 0x5555_0000, "/bin/prog", Some([9; 20]), 1), plain_sample(1, 5, 0x5555_0123)];
    let error = read(&file(PLAIN, &records), &image(), "prog").unwrap_err().to_string();
    assert!(error.contains("another build"), "{error}");
}

#[test]
fn a_child_shares_its_parents_mappings_until_it_executes() {
    let fork = record(7, 0, &words(&[pair(2, 1), pair(2, 1), 10, 10]));
    let executed = record(3, 1 << 13, &[words(&[pair(2, 2)]), path("other"), words(&[20])].concat());
    let records = [
        mmap2(1, 0x5555_0000, "/bin/prog", None, 1),
        fork,
        plain_sample(2, 15, 0x5555_0010),
        executed,
        plain_sample(2, 25, 0x5555_0020),
    ];
    assert_eq!(addresses(&file(PLAIN, &records)), [(Va(0x40_1010), 1)]);
}

#[test]
fn a_later_mapping_hides_an_earlier_one_from_its_time_on() {
    let records = [
        plain_sample(1, 15, 0x5555_0020),
        mmap2(1, 0x5555_0000, "/lib/other.so", None, 10),
        plain_sample(1, 5, 0x5555_0010),
        mmap2(1, 0x5555_0000, "/bin/prog", None, 1),
    ];
    assert_eq!(addresses(&file(PLAIN, &records)), [(Va(0x40_1010), 1)]);
}

#[test]
fn a_branch_stack_is_branches_and_what_ran_straight_between_them() {
    let sample_type = IDENTIFIER | IP | TID | TIME | PERIOD | CALLCHAIN | BRANCH_STACK;
    let base = 0x5555_0000;
    // Newest first: 0x30 → 0x10, before it 0x70 → 0x20, before that from outside to 0x60.
    let entries = [base + 0x30, base + 0x10, 1, base + 0x70, base + 0x20, 2, 0x1234, base + 0x60, 2];
    let mut body = words(&[99, base + 0x15, pair(1, 1), 5, 1, 2, 0x1111, 0x2222, 3]);
    body.extend(words(&entries));
    let mut mapping = mmap2(1, base, "/bin/prog", None, 1);
    // The identifier follows the time.
    mapping.extend(words(&[99]));
    let len = mapping.len() as u16;
    mapping[6..8].copy_from_slice(&len.to_le_bytes());
    let found = read(&file(sample_type, &[mapping, record(9, 2, &body)]), &image(), "prog").unwrap();
    let va = |offset: u64| Va(0x40_1000 + offset);
    let branches: Vec<_> = found.samples.branches.iter().map(|b| (b.from, b.to, b.mispredicted)).collect();
    assert_eq!(branches, [(None, Some(va(0x60)), 0), (Some(va(0x30)), Some(va(0x10)), 1), (Some(va(0x70)), Some(va(0x20)), 0)]);
    let traces: Vec<_> = found.samples.traces.iter().map(|t| (t.first, t.last)).collect();
    assert_eq!(traces, [(va(0x20), va(0x30)), (va(0x60), va(0x70))]);
    assert!(found.samples.addresses.is_empty());
}

#[test]
fn kernel_samples_are_told_apart() {
    let in_kernel = record(9, 1, &words(&[0xffff_ffff_8100_0000, pair(1, 1), 5, 1]));
    let records = [mmap2(1, 0x5555_0000, "/bin/prog", None, 1), in_kernel];
    assert_eq!(read(&file(PLAIN, &records), &image(), "prog").unwrap().in_kernel, 1);
}

/// A Zstandard frame as a recorder writes it: it begins, and goes on for ever. Each block of its bytes is as they are.
fn endless_frame(bytes: &[u8], block_len: usize) -> Vec<u8> {
    // A window of 64 KB, and no checksum.
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0, 6 << 3];
    for block in bytes.chunks(block_len) {
        frame.extend_from_slice(&((block.len() as u32) << 3).to_le_bytes()[..3]);
        frame.extend_from_slice(block);
    }
    frame
}

/// A mapping, samples, and a fork between them.
fn some_records() -> Vec<Vec<u8>> {
    let fork = record(7, 0, &words(&[pair(2, 1), pair(2, 1), 10, 10]));
    let samples = [(1, 5), (1, 7), (2, 12), (2, 13)].map(|(pid, time)| plain_sample(pid, time, 0x5555_0123 + time));
    let mapping = mmap2(1, 0x5555_0000, "/bin/prog", None, 1);
    [mapping].into_iter().chain(samples[..2].iter().cloned()).chain([fork]).chain(samples[2..].iter().cloned()).collect()
}

/// The first so many records as they are, and the others packed, in two kinds of compressed records.
fn packed_file(plain: usize, block_len: usize, payload_len: usize) -> Vec<u8> {
    let records = some_records();
    let frame = endless_frame(&records[plain..].concat(), block_len);
    let payloads = frame.chunks(payload_len).enumerate().map(|(index, payload)| match index % 2 {
        0 => record(81, 0, payload),
        _ => {
            let mut body = words(&[payload.len() as u64]);
            body.extend(payload);
            body.resize(body.len().next_multiple_of(8), 0);
            record(83, 0, &body)
        }
    });
    file(PLAIN, &records[..plain].iter().cloned().chain(payloads).collect::<Vec<_>>())
}

#[test]
fn what_was_recorded_compressed_says_the_same() {
    let found = read(&file(PLAIN, &some_records()), &image(), "prog").unwrap();
    assert_eq!((found.num_samples, found.samples.addresses.len()), (4, 4));
    for (plain, block_len, payload_len) in [(0, 1000, 60000), (1, 1000, 60000), (1, 50, 60000), (2, 7, 9), (0, 48, 1), (3, 1, 30)]
    {
        let packed = read(&packed_file(plain, block_len, payload_len), &image(), "prog").unwrap();
        assert_eq!(packed, found, "{plain} {block_len} {payload_len}");
    }
    let all = some_records();
    let ending = |records: &[Vec<u8>]| {
        record(81, 0, &ruzstd::encoding::compress_to_vec(&*records.concat(), ruzstd::encoding::CompressionLevel::Fastest))
    };
    let two_frames = file(PLAIN, &[ending(&all[..2]), ending(&all[2..])]);
    assert_eq!(read(&two_frames, &image(), "prog").unwrap(), found, "frames that end");
}

#[test]
fn what_was_recorded_compressed_and_cut_short_is_read_up_to_the_cut() {
    let whole = packed_file(1, 40, 20);
    for cut in 1..100 {
        let mut bytes = whole.clone();
        bytes.truncate(bytes.len() - cut);
        let found = read(&bytes, &image(), "prog").unwrap();
        assert!(found.cut_at.is_some() && found.num_samples < 4, "{cut} {found:?}");
    }
}

#[test]
fn a_frame_may_end_with_a_checksum_and_be_cut_before_it() {
    let records = some_records();
    let found = read(&file(PLAIN, &records), &image(), "prog").unwrap();
    let mut frame = endless_frame(&records.concat(), 1000);
    frame[4] = 4;
    frame.extend([1, 0, 0, 9, 9, 9, 9]);
    for (cut, payload_len) in (0..8).flat_map(|cut| [1, 5, 1000].map(|len| (cut, len))) {
        let payloads: Vec<Vec<u8>> =
            frame[..frame.len() - cut].chunks(payload_len).map(|payload| record(81, 0, payload)).collect();
        let unpacked = read(&file(PLAIN, &payloads), &image(), "prog").unwrap();
        // A checksum says nothing that is missed.
        assert_eq!((unpacked.num_samples, unpacked.cut_at.is_some()), (4, ![0, 4, 7].contains(&cut)), "{cut} {payload_len}");
        assert_eq!(unpacked.samples, found.samples);
    }
}

#[test]
fn compressed_records_that_are_damaged_are_refused_with_a_reason() {
    let error = read(&file(PLAIN, &[record(81, 0, &[0; 24])]), &image(), "prog").unwrap_err().to_string();
    assert!(error.contains("at byte") && error.contains("compressed"), "{error}");
    let too_long = record(83, 0, &words(&[100, 0, 0]));
    let error = read(&file(PLAIN, &[too_long]), &image(), "prog").unwrap_err().to_string();
    assert!(error.contains("longer than its record"), "{error}");
}

#[test]
fn a_file_that_was_cut_short_is_read_up_to_the_cut() {
    let records = [mmap2(1, 0x5555_0000, "/bin/prog", None, 1), plain_sample(1, 5, 0x5555_0123), plain_sample(1, 5, 0x5555_0123)];
    let mut bytes = file(PLAIN, &records);
    bytes.truncate(bytes.len() - 5);
    let found = read(&bytes, &image(), "prog").unwrap();
    assert_eq!(found.num_samples, 1);
    assert!(found.cut_at.is_some());
}

#[test]
fn a_sample_that_lies_about_its_length_is_named_by_its_offset() {
    let body = words(&[0x5555_0000, pair(1, 1), 5, u64::MAX / 2]);
    let records = [mmap2(1, 0x5555_0000, "/bin/prog", None, 1), record(9, 2, &body)];
    let bytes = file(IP | TID | TIME | BRANCH_STACK, &records);
    let error = read(&bytes, &image(), "prog").unwrap_err().to_string();
    assert!(error.contains("at byte"), "{error}");
}

proptest! {
    #[test]
    fn damaged_compressed_files_never_panic(edits in proptest::collection::vec((0usize..1000, any::<u8>()), 1..6), cut in 0usize..200) {
        let mut bytes = packed_file(1, 40, 50);
        let len = bytes.len();
        for (at, value) in edits {
            bytes[at % len] = value;
        }
        bytes.truncate(len - cut);
        let _ = read(&bytes, &image(), "prog");
    }

    #[test]
    fn damaged_files_never_panic(edits in proptest::collection::vec((0usize..1000, any::<u8>()), 1..6), cut in 0usize..400) {
        let fork = record(7, 0, &words(&[pair(2, 1), pair(2, 1), 10, 10]));
        let branches = words(&[0x5555_0123, pair(1, 1), 5, 2, 0x5555_0030, 0x5555_0010, 0, 0x5555_0070, 0x5555_0020, 0]);
        let records = [mmap2(1, 0x5555_0000, "/bin/prog", None, 1), fork, record(9, 2, &branches), record(9, 2, &branches)];
        let mut bytes = file(IP | TID | TIME | BRANCH_STACK, &records);
        let len = bytes.len();
        for (at, value) in edits {
            bytes[at % len] = value;
        }
        bytes.truncate(len - cut);
        let _ = read(&bytes, &image(), "prog");
    }
}
