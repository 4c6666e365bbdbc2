//! The profile file: written and read back, merged, attributed to the same program, a rebuilt one and another one, and damaged.

use lifter::Va;
use lifter::entity::{EntityId, Func};
use proptest::prelude::*;

use super::*;
use crate::attribute::attribute;
use crate::instrument::plan_counters;
use crate::outline::FuncOutline;
use crate::testing::{End, arbitrary_ends, empty_image, program};

fn two_functions() -> Vec<Vec<End>> {
    vec![vec![End::Branch(2), End::Fallthrough, End::Return], vec![End::Fallthrough, End::Branch(1), End::Return]]
}

fn profile_of(funcs: &[Vec<End>]) -> ProfileFile {
    let program = program(funcs);
    let plan = plan_counters(&empty_image(), &program);
    let mut descriptor = Descriptor::build(&empty_image(), &program, &plan);
    descriptor.set_entries(Va(0x1000), |func| Some(program.blocks[program.funcs[func].entry].start));
    let mut file = ProfileFile::empty(descriptor);
    (1u64..).zip(&mut file.counters).for_each(|(n, counter)| *counter = n * 10);
    file
}

#[test]
fn what_is_written_reads_back() {
    let file = profile_of(&two_functions());
    assert_eq!(ProfileFile::read(&file.write()).unwrap(), file);
}

#[test]
fn entry_addresses_do_not_change_the_length_or_the_plan() {
    let file = profile_of(&two_functions());
    let mut moved = file.descriptor.clone();
    moved.set_entries(Va(0), |_| Some(Va(0x7fff_0000)));
    let ((header, bytes), (moved_header, moved_bytes)) = (file.descriptor.encode(), moved.encode());
    assert_eq!(bytes.len(), moved_bytes.len());
    assert_eq!(header.plan_hash, moved_header.plan_hash);
    assert_ne!(header.descriptor_hash, moved_header.descriptor_hash);
}

#[test]
fn merging_adds_counters_and_targets_and_keeps_the_most_frequent() {
    let mut file = profile_of(&two_functions());
    file.descriptor.funcs[0].calls.push(CallDescriptor { block_offset: 0, offset: 2, len: 2 });
    file.calls.push(CallCounts { targets: (0..4).map(|t| (Target::Image(t), t + 1)).collect(), other: 1 });
    let mut other = file.clone();
    other.calls[0] = CallCounts { targets: vec![(Target::External, 9), (Target::Image(0), 9)], other: 0 };
    let sum = ProfileFile::merge(&[file.clone(), other]).unwrap();
    assert!(sum.counters.iter().zip(&file.counters).all(|(sum, one)| *sum == 2 * one));
    let targets = [(Target::Image(0), 10), (Target::External, 9), (Target::Image(3), 4), (Target::Image(2), 3)];
    assert_eq!(sum.calls[0], CallCounts { targets: targets.to_vec(), other: 3 });
    assert_eq!(ProfileFile::read(&sum.write()).unwrap(), sum);
}

#[test]
fn profiles_of_different_plans_are_not_added_up() {
    let one = profile_of(&two_functions());
    let other = profile_of(&two_functions()[..1]);
    assert!(matches!(ProfileFile::merge(&[one, other]), Err(Error::DifferentPlans { first: 0, other: 1 })));
    assert!(matches!(ProfileFile::merge(&[]), Err(Error::NothingToMerge)));
}

#[test]
fn the_summary_lists_what_ran_hottest_first() {
    let mut file = profile_of(&two_functions());
    let last = file.counters.len() - 1;
    file.counters[last] = 5000;
    let summary = file.summary();
    assert_eq!(summary.functions.len(), 2);
    assert!(summary.functions[0].counted >= 5000 && summary.functions[1].counted < 5000);
    assert_eq!(summary.counted, file.counters.iter().sum::<u64>());
}

#[test]
fn a_profile_of_the_same_program_is_attributed_in_full() {
    let program = program(&two_functions());
    let file = profile_of(&two_functions());
    let found = attribute(&file, &empty_image(), &program).unwrap();
    assert!(found.quality.is_exact);
    assert_eq!(found.quality.functions_matched, found.quality.functions_total);
    assert_eq!(found.quality.counts_matched, found.quality.counts_total);
    assert!(found.weights.has_counts());
    assert_eq!(crate::infer::first_inconsistent(&program, &found.weights), None);
}

#[test]
fn after_a_rebuild_functions_are_found_by_content() {
    let mut file = profile_of(&two_functions());
    file.descriptor.identity = [1, 2];
    // The rebuilt program has the second function first, and another one in the place of the first.
    let mut rebuilt = program(&[two_functions()[1].clone(), vec![End::Return]]);
    rebuilt.funcs[Func::new(0)].content_hash = file.descriptor.funcs[1].content_hash;
    rebuilt.funcs[Func::new(1)].content_hash = 0;
    let found = attribute(&file, &empty_image(), &rebuilt).unwrap();
    assert!(!found.quality.is_exact);
    assert_eq!((found.quality.functions_matched, found.quality.functions_total), (1, 2));
    assert!(found.quality.counts_matched < found.quality.counts_total);
    let same = attribute(&profile_of(&two_functions()), &empty_image(), &program(&two_functions())).unwrap();
    assert_eq!(found.weights.blocks[..3], same.weights.blocks[3..]);
    assert_eq!(found.weights.blocks[3], 0);
}

#[test]
fn a_profile_of_another_binary_is_refused() {
    let mut file = profile_of(&two_functions());
    file.descriptor.identity = [1, 2];
    file.descriptor.funcs.iter_mut().for_each(|f| f.content_hash = 77);
    for (func, number) in file.descriptor.funcs.iter_mut().zip(1000..) {
        func.outline.content_hash = 77;
        func.outline.blocks.iter_mut().for_each(|b| (b.strong, b.middle, b.loose) = (number, number, number));
    }
    let refuse = |file: &ProfileFile| attribute(file, &empty_image(), &program(&two_functions())).unwrap_err().to_string();
    assert!(refuse(&file).starts_with("profile of another binary"));
    file.descriptor.funcs.iter_mut().for_each(|f| f.outline = FuncOutline::default());
    assert!(refuse(&file).starts_with("profile of another binary"));
}

#[test]
fn recorded_targets_become_functions() {
    let program = program(&two_functions());
    let mut file = profile_of(&two_functions());
    file.descriptor.funcs[0].calls.push(CallDescriptor { block_offset: 8, offset: 2, len: 2 });
    let entry = u64::from(file.descriptor.funcs[1].entry.unwrap());
    let targets = vec![(Target::Image(entry), 8), (Target::External, 2), (Target::Image(entry + 1), 1)];
    file.calls.push(CallCounts { targets, other: 4 });
    let found = attribute(&file, &empty_image(), &program).unwrap();
    let site = &found.weights.indirect[0];
    assert_eq!((site.return_offset, site.other), (4, 7));
    assert_eq!(site.targets, [(Func::new(1), 8)]);
}

#[test]
fn files_that_are_no_profile_say_so() {
    let message = |bytes: &[u8]| ProfileFile::read(bytes).unwrap_err().to_string();
    assert_eq!(message(b""), "not a relift profile: the file is empty");
    assert_eq!(message(b"hello"), "not a relift profile: the file is too short");
    assert_eq!(message(&[7; 4096]), "not a relift profile: no magic number of a relift profile");
    assert!(message(&[0; 8192]).contains("still being created"));
    let mut bytes = profile_of(&two_functions()).write();
    bytes[8] = 9;
    assert_eq!(message(&bytes), "the profile has version 9; this relift reads versions up to 2");
}

proptest! {
    // No file of past failures: a failing case belongs here as a test of its own.
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_plan_reads_back(ends in arbitrary_ends(24)) {
        let file = profile_of(&[ends]);
        prop_assert_eq!(ProfileFile::read(&file.write()).unwrap(), file);
    }

    #[test]
    fn damaged_files_are_errors_or_profiles_but_never_panics(
        damage in proptest::collection::vec((any::<u16>(), any::<u8>()), 1..5),
        cut in any::<u16>(),
        is_rehashed in any::<bool>(),
    ) {
        let mut bytes = profile_of(&two_functions()).write();
        let len = bytes.len();
        for (place, value) in damage {
            bytes[usize::from(place) % 400.min(len)] = value;
        }
        if is_rehashed {
            // Past the hash, so that the descriptor's own checks are reached.
            let end = 128 + u64::from_le_bytes(bytes[24..32].try_into().unwrap()).min(4096 - 128) as usize;
            let hash = xxhash_rust::xxh3::xxh3_64(&bytes[128..end]);
            bytes[88..96].copy_from_slice(&hash.to_le_bytes());
        }
        bytes.truncate(len - usize::from(cut) % 64);
        if let Ok(file) = ProfileFile::read(&bytes) {
            let _ = file.summary();
            let _ = attribute(&file, &empty_image(), &program(&two_functions()));
        }
    }
}
