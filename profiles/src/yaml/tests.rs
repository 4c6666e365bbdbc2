//! A document as BOLT writes it: read, and damaged in every way.

use proptest::prelude::*;

use super::*;

const DOCUMENT: &str = "---\nheader:\n  profile-version: 1\n  profile-flags:   [ lbr ]\n  profile-events:  'cycles:u'\n  dfs-order:       false\nfunctions:\n  - name:            'f/1'\n    fid:             1\n    hash:            0xA4597C63995DE6B7\n    exec:            7\n    nblocks:         3\n    blocks:\n      - bid:             0\n        insns:           4\n        hash:            0xFB0031E849530000\n        exec:            7\n        calls:           [ { off: 0x9, fid: 2, cnt: 5, mis: 1 } ]\n        succ:            [ { bid: 2, cnt: 6 }, { bid: 1, cnt: 0 } ]\n      - bid:             2\n        insns:           2\n        hash:            0x27E309B7820012\n  - name:            g\n    fid:             2\n    exec:            5\n    nblocks:         1\n...\n";

#[test]
fn what_bolt_writes_is_read() {
    let yaml = parse(DOCUMENT.as_bytes()).unwrap();
    assert_eq!((yaml.version, yaml.events.as_str(), yaml.functions.len()), (1, "cycles:u", 2));
    let f = &yaml.functions[0];
    assert_eq!((f.name.as_str(), f.fid, f.exec, f.num_blocks, f.blocks.len()), ("f/1", 1, 7, 3, 2));
    assert_eq!(f.blocks[0].calls, [Call { offset: 9, fid: 2, count: 5, mispredicted: 1 }]);
    assert_eq!(f.blocks[0].successors[0], Successor { bid: 2, count: 6, mispredicted: 0 });
    assert_eq!(f.blocks[1].hash & 0xffff, 0x12);
}

#[test]
fn a_damaged_line_is_named() {
    let text = DOCUMENT.replace("{ bid: 2, cnt: 6 }", "{ bid: 2, cnt: six }");
    let error = parse(text.as_bytes()).unwrap_err().to_string();
    assert!(error.contains("line 19"), "{error}");
}

proptest! {
    #[test]
    fn damaged_files_never_panic(index in 0..DOCUMENT.len(), byte: u8, cut in 0..DOCUMENT.len()) {
        let mut bytes = DOCUMENT.as_bytes().to_vec();
        bytes[index] = byte;
        bytes.truncate(bytes.len() - cut);
        let _ = parse(&bytes);
    }
}
