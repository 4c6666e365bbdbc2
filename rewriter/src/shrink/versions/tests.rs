//! A version need that is added to a table.

use super::*;

#[test]
fn one_version_more_is_found_behind_the_others() {
    let strings = b"\0libm.so.6\0libc.so.6\0A\0B\0GLIBC_ABI_DT_RELR\0";
    let need = |file, versions: &[(u32, u16, u16, u32)]| Need { version: 1, file, versions: versions.to_vec() };
    let table = write(&[need(11, &[(1, 0, 2, 21)]), need(1, &[(2, 0, 5, 23)])]);
    assert_eq!(asked(&table, strings), Some(Asked::WithoutRelr));
    let longer = with_relr(&table, strings, 4, 25).unwrap();
    assert_eq!(longer.len(), table.len() + 16);
    assert_eq!(asked(&longer, strings), Some(Asked::WithRelr));
    let needs = parse(&longer).unwrap();
    assert_eq!(needs[0].versions, [(1, 0, 2, 21), (elf_hash(DT_RELR_VERSION), 0, 6, 25)]);
    assert_eq!(needs[1].versions, [(2, 0, 5, 23)]);
}

#[test]
fn a_cut_table_is_none() {
    let table = write(&[Need { version: 1, file: 1, versions: vec![(1, 0, 2, 3)] }]);
    for len in 0..table.len() {
        assert!(parse(&table[..len]).is_none());
    }
}

#[test]
fn the_hash_is_that_of_the_gabi() {
    assert_eq!(elf_hash("GLIBC_2.2.5"), 0x0969_1a75);
}
