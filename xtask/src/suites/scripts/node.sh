timeout 600 /usr/bin/node "$SUITE/session.js" > "$RESULTS/session.lines" 2>&1
echo "status $?" >> "$RESULTS/session.lines"
record version /usr/bin/node --version
record print /usr/bin/node -p '[1, 2, 3].map(x => x ** 2).join()'
record interpreted /usr/bin/node --jitless -p 'let s = 0; for (let i = 0; i < 1e6; i++) s += i % 7; s'
record no-optimizer /usr/bin/node --no-opt --no-sparkplug -p 'let s = 0; for (let i = 0; i < 1e6; i++) s += i % 7; s'
record wrong /usr/bin/node -e 'null.x'
record check /usr/bin/node --check "$SUITE/session.js"
record options /usr/bin/node --v8-options
record help /usr/bin/node --help
record stdin sh -c 'echo "console.log(6 * 7)" | /usr/bin/node -'
record module /usr/bin/node --input-type=module -e 'import fs from "node:fs"; console.log(typeof fs.readFileSync, import.meta.url.slice(0, 5))'
