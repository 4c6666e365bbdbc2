/* A program without a C library: its own start, a switch, a table of functions, one call that does not return. */
static long call(long number, long first, long second, long third) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(first), "S"(second), "d"(third) : "rcx", "r11", "memory");
    return result;
}

static __attribute__((noinline, noreturn)) void leave(int status) {
    for (;;) call(60, status, 0, 0);
}

static __attribute__((noinline)) int choose(int x) {
    switch (x & 7) {
    case 0: return x + 3;
    case 1: return x * 5;
    case 2: return x ^ 77;
    case 3: return -x;
    case 4: return x << 3;
    case 5: return x / 3;
    case 6: return 9;
    default: return x - 1;
    }
}

static __attribute__((noinline)) int twice(int x) { return choose(x) + choose(x + 1); }
static __attribute__((noinline)) int thrice(int x) { return x < 4 ? twice(x) : twice(x) + choose(x); }

static int (*const volatile functions[])(int) = {choose, twice, thrice};

void _start(void) {
    int sum = 0;
    for (int i = 0; i < 30; i++) {
        if (sum < -1000000) leave(1);
        sum += functions[i % 3](i);
    }
    leave(sum == 0x7fffffff ? 2 : 42);
}
