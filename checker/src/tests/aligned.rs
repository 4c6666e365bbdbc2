//! Accesses that fault unless their address is a multiple of their size: one that may fault where the input goes on is seen.

use super::proofs::{assert_different, assert_same};

#[test]
fn an_access_that_was_not_aligned_stays_so() {
    for (input, output) in [
        ("movups (%rsi), %xmm0", "movaps (%rsi), %xmm0"),
        ("movups %xmm0, (%rsi)", "movaps %xmm0, (%rsi)"),
        ("movupd (%rsi), %xmm0", "movapd (%rsi), %xmm0"),
        ("movdqu (%rsi,%rdx), %xmm0", "movdqa (%rsi,%rdx), %xmm0"),
        ("lddqu (%rsi), %xmm0", "movdqa (%rsi), %xmm0"),
        ("vmovups (%rsi), %xmm0", "vmovaps (%rsi), %xmm0"),
        ("vmovupd %ymm0, (%rsi)", "vmovapd %ymm0, (%rsi)"),
        ("vmovdqu (%rsi), %ymm0", "vmovdqa (%rsi), %ymm0"),
    ] {
        assert_different(input, output);
        // The other way round less faults.
        assert_same(output, input);
    }
}

#[test]
fn an_operand_of_a_calculation_is_aligned_in_the_older_encoding() {
    for name in ["pxor", "xorps", "xorpd"] {
        let loaded = format!("movups (%rsi), %xmm1; {name} %xmm1, %xmm0; xorps %xmm1, %xmm1");
        let in_place = format!("{name} (%rsi), %xmm0; xorps %xmm1, %xmm1");
        assert_different(&loaded, &in_place);
        assert_same(&in_place, &loaded);
        assert_same(&loaded.replace("movups", "movaps"), &in_place);
    }
    // So it shows what is aligned.
    for shows in [
        "paddd (%rsi), %xmm0",
        "cvtdq2ps (%rsi), %xmm0",
        "pshufb (%rsi), %xmm0",
        "ptest (%rsi), %xmm0",
        "pshufd $1, (%rsi), %xmm0",
    ] {
        let input = format!("{shows}; movups 16(%rsi), %xmm1");
        assert_same(&input, &input.replace("movups", "movaps"));
    }
    // Less than a register, or the newer encoding, does not.
    for shows_nothing in
        ["addsd (%rsi), %xmm0", "cvtdq2pd (%rsi), %xmm0", "pmovzxbw (%rsi), %xmm0", "vpaddd (%rsi), %xmm0, %xmm0"]
    {
        let input = format!("{shows_nothing}; movups 16(%rsi), %xmm1");
        assert_different(&input, &input.replace("movups", "movaps"));
    }
}

#[test]
fn what_another_access_shows_to_be_aligned_may_be() {
    let input = "movaps (%rsi), %xmm0; movups 16(%rsi), %xmm1";
    assert_same(input, &input.replace("movups", "movaps"));
    let input = "movups -32(%rsi), %xmm0; mov %rsi, %rax; movaps %xmm0, (%rax)";
    assert_same(input, &input.replace("movups", "movaps"));
    let input = "movaps (%rsi), %xmm0; movups 8(%rsi), %xmm1";
    assert_different(input, &input.replace("movups", "movaps"));
    let input = "movaps (%rsi), %xmm0; movups 16(%rdx), %xmm1";
    assert_different(input, &input.replace("movups", "movaps"));
    let input = "movaps (%rsi), %xmm0; movups (%rsi,%rdx), %xmm1";
    assert_different(input, &input.replace("movups", "movaps"));
    // What is a multiple of 32 is one of 16.
    let input = "vmovaps (%rsi), %ymm0; vmovups 16(%rsi), %xmm1";
    assert_same(input, &input.replace("vmovups", "vmovaps"));
    let input = "vmovaps (%rsi), %xmm0; vmovups (%rsi), %ymm1";
    assert_different(input, &input.replace("vmovups", "vmovaps"));
    // On another way.
    let input = "movaps (%rsi), %xmm0; test %edi, %edi; je 1f; movups (%rsi), %xmm1; 1:";
    assert_different(input, &input.replace("movups", "movaps"));
}

#[test]
fn an_address_of_the_image_is_aligned_or_not_by_itself() {
    assert_same("movups numbers(%rip), %xmm0", "movaps numbers(%rip), %xmm0");
    assert_different("movups numbers+8(%rip), %xmm0", "movaps numbers+8(%rip), %xmm0");
    assert_same("movups numbers(%rip), %xmm0; pxor %xmm0, %xmm1", "movups numbers(%rip), %xmm0; pxor numbers(%rip), %xmm1");
}

#[test]
fn a_slot_of_the_frame_is_aligned_where_the_abi_has_it_so_or_it_was() {
    let input = "movups %xmm0, 8(%rsp); mov %rdi, %rax; movups 8(%rsp), %xmm1";
    assert_different(input, &input.replacen("movups", "movaps", 1));
    assert_different(input, &input.replace("movups 8(", "movaps 8("));
    let input = "movaps %xmm0, 8(%rsp); mov %rdi, %rax; movups 8(%rsp), %xmm1";
    assert_same(input, &input.replace("movups 8(", "movaps 8("));
    assert_same(input, "mov %rdi, %rax; movaps %xmm0, 8(%rsp); movaps %xmm0, %xmm1");
    // By the frame address: a store may be made on one way only.
    let input = "movaps %xmm0, (%rsp); test %edi, %edi; je 1f; movaps (%rsp), %xmm1; 1:";
    assert_same(input, "test %edi, %edi; je 1f; movaps %xmm0, (%rsp); movaps (%rsp), %xmm1; 1:");
    assert_different("vmovups %ymm0, -16(%rsp)", "vmovaps %ymm0, -16(%rsp)");
}
