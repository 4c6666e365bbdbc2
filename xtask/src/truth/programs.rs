//! The real programs: where each comes from, how it is built, and in which variants.

/// Where the sources of a program come from.
#[derive(Copy, Clone, Debug)]
pub(super) enum Origin {
    /// A Debian source package.
    Debian(&'static str),
    /// This repository.
    Here,
}

/// A program of which every variant is built from a copy of its sources.
#[derive(Debug)]
pub(super) struct Recipe {
    pub(super) name: &'static str,
    pub(super) origin: Origin,
    /// Run by `sh` in the copy, with `$CC` and `$CXX`, the flags `$FLAGS` to compile and `$LINK` to link, and the file to write, `$OUT`.
    pub(super) script: &'static str,
    /// COMPILER-LEVEL[-EXTRA…]-KIND.
    pub(super) variants: &'static [&'static str],
}

/// `./configure` and `make`, then the program that it made.
macro_rules! configured {
    ($flags:literal, $made:literal) => {
        concat!(
            "CFLAGS=\"$FLAGS\" CXXFLAGS=\"$FLAGS\" LDFLAGS=\"$LINK\" ./configure ",
            $flags,
            " && make -s && cp ",
            $made,
            " \"$OUT\""
        )
    };
}

pub(super) const RECIPES: [Recipe; 25] = [
    Recipe {
        name: "lua",
        origin: Origin::Debian("lua5.4"),
        script: "touch src/lua5.4-deb-multiarch.h && echo '#define DEB_HOST_MULTIARCH \"x86_64-linux-gnu\"' > src/lua5.4-deb-multiarch.h && rm src/luac.c && \
            $CC $FLAGS -std=gnu99 -DLUA_COMPAT_5_3 -DLUA_USE_LINUX src/*.c $LINK -Wl,-E -lm -ldl -o \"$OUT\"",
        variants: &[
            "gcc-O0-pie",
            "gcc-O2-pie",
            "gcc-O3-pie",
            "gcc-Os-fixed",
            "gcc-O2-fixed",
            "gcc-O2-static",
            "gcc-O2-lto-pie",
            "gcc-O2-cet-pie",
            "gcc-O2-thunk-pie",
            "clang-O0-pie",
            "clang-O2-fixed",
            "clang-O3-lld-pie",
            "clang-Os-pie",
            "clang-O3-lld-lto-pie",
        ],
    },
    Recipe {
        name: "bzip2",
        origin: Origin::Debian("bzip2"),
        script: "$CC $FLAGS -D_FILE_OFFSET_BITS=64 blocksort.c huffman.c crctable.c randtable.c compress.c decompress.c bzlib.c bzip2.c $LINK -o \"$OUT\"",
        variants: &[
            "gcc-O0-pie",
            "gcc-O2-pie",
            "gcc-O3-fixed",
            "gcc-Os-pie",
            "clang-O2-pie",
            "clang-O3-fixed",
            "clang-O2-lld-pie",
        ],
    },
    Recipe {
        name: "zstd",
        origin: Origin::Debian("libzstd"),
        script: "$CC $FLAGS -DXXH_NAMESPACE=ZSTD_ -DZSTD_MULTITHREAD -DZSTD_LEGACY_SUPPORT=0 -pthread lib/common/*.c lib/compress/*.c \
            lib/decompress/*.c lib/decompress/*.S lib/dictBuilder/*.c programs/*.c $LINK -o \"$OUT\"",
        variants: &["gcc-O2-pie", "gcc-O3-fixed", "clang-O2-pie", "clang-Os-fixed"],
    },
    Recipe {
        name: "sqlite3",
        origin: Origin::Debian("sqlite3"),
        script: "./configure --quiet --disable-readline && make --quiet sqlite3.c shell.c && $CC $FLAGS -DSQLITE_ENABLE_FTS5 \
            -DSQLITE_ENABLE_RTREE -DSQLITE_ENABLE_EXPLAIN_COMMENTS sqlite3.c shell.c $LINK -lm -ldl -pthread -o \"$OUT\"",
        variants: &["gcc-O0-pie", "gcc-O2-pie", "gcc-O3-pie", "gcc-Os-fixed", "clang-O2-pie", "clang-O3-fixed"],
    },
    Recipe {
        name: "mawk",
        origin: Origin::Debian("mawk"),
        script: configured!("--quiet", "mawk"),
        variants: &["gcc-O0-pie", "gcc-O2-pie", "gcc-O3-fixed", "clang-O2-pie"],
    },
    Recipe {
        name: "gawk",
        origin: Origin::Debian("gawk"),
        script: "CFLAGS=\"$FLAGS\" LDFLAGS=\"$LINK\" ./configure --quiet --disable-nls --disable-pma --without-readline --without-mpfr \
            && make -s -C support && make -s gawk && cp gawk \"$OUT\"",
        variants: &["gcc-O2-pie", "gcc-O3-fixed", "clang-Os-pie"],
    },
    Recipe {
        name: "sed",
        origin: Origin::Debian("sed"),
        script: configured!("--quiet --disable-nls --disable-dependency-tracking", "sed/sed"),
        variants: &["gcc-O2-static", "clang-O2-pie"],
    },
    Recipe {
        name: "grep",
        origin: Origin::Debian("grep"),
        script: configured!("--quiet --disable-nls --disable-dependency-tracking", "src/grep"),
        variants: &["gcc-O3-pie", "clang-O2-fixed"],
    },
    Recipe {
        name: "gzip",
        origin: Origin::Debian("gzip"),
        script: configured!("--quiet --disable-dependency-tracking", "gzip"),
        variants: &["gcc-Os-pie", "clang-O0-fixed"],
    },
    Recipe {
        name: "xz",
        origin: Origin::Debian("xz-utils"),
        script: configured!("--quiet --disable-nls --disable-shared --disable-scripts --disable-doc", "src/xz/xz"),
        variants: &["gcc-O2-pie", "clang-O3-pie"],
    },
    Recipe {
        name: "bc",
        origin: Origin::Debian("bc"),
        script: "CFLAGS=\"$FLAGS\" LDFLAGS=\"$LINK\" ./configure --quiet && (make -s -C lib; make -s -C bc bc) && cp bc/bc \"$OUT\"",
        variants: &["gcc-O2-fixed", "clang-O2-pie"],
    },
    Recipe {
        name: "dash",
        origin: Origin::Debian("dash"),
        script: configured!("--quiet --disable-dependency-tracking", "src/dash"),
        variants: &["gcc-O2-pie", "gcc-O2-static", "clang-Os-fixed"],
    },
    Recipe {
        name: "mujs",
        origin: Origin::Debian("mujs"),
        script: "$CC $FLAGS -I. main.c one.c $LINK -lm -o \"$OUT\"",
        variants: &["gcc-O0-fixed", "gcc-O2-pie", "gcc-O3-pie", "gcc-O2-lto-fixed", "clang-O2-pie", "clang-O3-lld-fixed"],
    },
    Recipe {
        name: "duktape",
        origin: Origin::Debian("duktape"),
        script: "$CC $FLAGS -std=c99 -Isrc -Iexamples/cmdline -Iextras/print-alert -Iextras/console -Iextras/module-duktape -DDUK_CMDLINE_PRINTALERT_SUPPORT \
            -DDUK_CMDLINE_CONSOLE_SUPPORT -DDUK_CMDLINE_MODULE_SUPPORT src/duktape.c examples/cmdline/duk_cmdline.c \
            extras/print-alert/duk_print_alert.c extras/console/duk_console.c extras/module-duktape/duk_module_duktape.c $LINK -lm -o \"$OUT\"",
        variants: &["gcc-O0-pie", "gcc-O2-fixed", "gcc-O3-pie", "gcc-Os-pie", "clang-O2-pie", "clang-O3-fixed"],
    },
    Recipe {
        name: "jimtcl",
        origin: Origin::Debian("jimtcl"),
        script: "CFLAGS=\"$FLAGS\" LDFLAGS=\"$LINK\" ./configure --full >/dev/null && make -s && cp jimsh \"$OUT\"",
        variants: &["gcc-O2-pie", "clang-O3-fixed"],
    },
    Recipe {
        name: "tcc",
        origin: Origin::Debian("tcc"),
        script: "./configure >/dev/null && $CC $FLAGS -DONE_SOURCE=1 -DTCC_TARGET_X86_64 -I. tcc.c $LINK -lm -ldl -pthread -o \"$OUT\"",
        variants: &["gcc-O0-pie", "gcc-O2-pie", "gcc-O3-fixed", "clang-O2-fixed", "clang-Os-pie"],
    },
    Recipe {
        name: "zlib",
        origin: Origin::Debian("zlib"),
        script: "$CC $FLAGS -D_LARGEFILE64_SOURCE=1 -DHAVE_UNISTD_H -I. *.c $(test \"$KIND\" = library || echo test/minigzip.c) $LINK -o \"$OUT\"",
        variants: &["gcc-O2-library", "gcc-O3-pie", "clang-O2-library", "clang-O3-lld-library", "clang-O2-static"],
    },
    Recipe {
        name: "tinyxml2",
        origin: Origin::Debian("tinyxml2"),
        script: "$CXX $FLAGS tinyxml2.cpp xmltest.cpp $LINK -o \"$OUT\"",
        variants: &["gcc-O0-pie", "gcc-O2-pie", "gcc-O3-fixed", "gcc-Os-pie", "clang-O2-pie", "clang-O3-fixed", "gcc-O2-library"],
    },
    Recipe {
        name: "jsoncpp",
        origin: Origin::Debian("libjsoncpp"),
        script: "$CXX $FLAGS -Iinclude src/lib_json/*.cpp src/jsontestrunner/main.cpp $LINK -o \"$OUT\"",
        variants: &["gcc-O0-fixed", "gcc-O2-pie", "gcc-O3-pie", "clang-O2-fixed", "clang-Os-pie"],
    },
    Recipe {
        name: "pugixml",
        origin: Origin::Debian("pugixml"),
        script: "rm -f tests/fuzz*.cpp && $CXX $FLAGS -Isrc src/pugixml.cpp tests/*.cpp $LINK -o \"$OUT\"",
        variants: &["gcc-O2-pie", "clang-Os-fixed"],
    },
    Recipe {
        name: "re2",
        origin: Origin::Debian("re2"),
        script: "$CXX $FLAGS -std=c++11 -pthread -I. re2/*.cc util/rune.cc util/strutil.cc util/pcre.cc util/test.cc \
            re2/testing/backtrack.cc re2/testing/dump.cc re2/testing/exhaustive_tester.cc re2/testing/null_walker.cc re2/testing/regexp_generator.cc \
            re2/testing/string_generator.cc re2/testing/tester.cc re2/testing/search_test.cc re2/testing/re2_test.cc re2/testing/parse_test.cc \
            re2/testing/simplify_test.cc $LINK -o \"$OUT\"",
        variants: &["gcc-O2-pie", "gcc-O3-fixed", "clang-O2-pie", "gcc-Os-cet-pie"],
    },
    Recipe {
        name: "ninja",
        origin: Origin::Debian("ninja-build"),
        script: "$CXX $FLAGS $(ls src/*.cc | grep -v -e win32 -e _test -e perftest -e test.cc -e bench -e in.cc -e browse -e msvc) $LINK -o \"$OUT\"",
        variants: &["gcc-O0-pie", "gcc-O2-pie", "gcc-O3-fixed", "clang-O2-pie", "clang-O3-lld-pie"],
    },
    Recipe {
        name: "leveldb",
        origin: Origin::Debian("leveldb"),
        script: "$CXX $FLAGS -pthread -std=c++17 -DLEVELDB_PLATFORM_POSIX=1 -I. -Iinclude $(ls db/*.cc table/*.cc util/*.cc helpers/memenv/*.cc | grep -v -e _test -e testutil -e windows -e leveldbutil) \
            db/leveldbutil.cc $LINK -o \"$OUT\"",
        variants: &["gcc-O2-pie", "clang-O2-fixed"],
    },
    Recipe {
        name: "yaml-cpp",
        origin: Origin::Debian("yaml-cpp"),
        script: "$CXX $FLAGS -Iinclude src/*.cpp util/parse.cpp $LINK -o \"$OUT\"",
        variants: &["gcc-O2-pie", "clang-O3-pie"],
    },
    Recipe {
        name: "relift",
        origin: Origin::Here,
        script: "cargo rustc --quiet --release --bin relift --target-dir \"$TARGET\" -- $FLAGS $LINK && cp \"$TARGET/release/relift\" \"$OUT\"",
        variants: &["rustc-O3-pie", "rustc-Os-fixed"],
    },
];
