'use strict';
const assert = require('assert'), zlib = require('zlib'), crypto = require('crypto'), { Worker, isMainThread, workerData, parentPort } = require('worker_threads');
const say = (name, value) => console.log(name + ': ' + (typeof value === 'string' ? value : JSON.stringify(value)));
const digest = data => crypto.createHash('sha256').update(data).digest('hex').slice(0, 16);

if (!isMainThread) {
    let sum = 0;
    for (let i = 0; i < workerData.count; i++) sum = (sum * 31 + i) % 1000003;
    parentPort.on('message', text => { parentPort.postMessage({ sum, text: text.toUpperCase(), match: text.match(/(\w+) (\w+)/).slice(1) }); parentPort.close(); });
} else {
    main().then(() => say('end', 'reached'), error => { say('failed', error.stack); process.exitCode = 1; });
}

function json() {
    const value = { a: [1, 2.5, -3e10, true, null, 'text \u00e9 \ud83d\ude00 \n"'], nested: { deep: { er: [[[]], {}] } } };
    for (let i = 0; i < 2000; i++) value['key' + i] = { i, square: i * i, list: Array.from({ length: i % 13 }, (_, j) => j / 7) };
    const text = JSON.stringify(value, null, 2);
    assert.deepStrictEqual(JSON.parse(text), value);
    say('json', [text.length, digest(text), JSON.stringify(JSON.parse('{"__proto__":1,"x":[1,{"y":2}]}', (k, v) => typeof v === 'number' ? v + 1 : v))]);
    for (const bad of ['{', '[1,]', '"\u0001"', 'nul', '01']) try { JSON.parse(bad); } catch (error) { say('json error', error.message); }
}

function regexes() {
    const text = 'The year 2026-11-21 and 1999-12-31, mail me@example.com or you.too@test.org; ' + 'ab'.repeat(2000);
    say('dates', [...text.matchAll(/(?<y>\d{4})-(?<m>\d\d)-(?<d>\d\d)/g)].map(m => ({ ...m.groups })));
    say('mails', text.match(/[\w.]+@[\w.]+\.\w+/g));
    say('lookaround', 'price: $100, $200; 300'.match(/(?<=\$)\d+(?=,)/g));
    say('backreference', /(\w)(\w)\2\1/.exec('xx abba yy').index);
    say('unicode', 'Ελλάδα здравствуй'.match(/\p{Script=Greek}+|\p{Lu}/gu));
    say('sticky', (() => { const r = /\d/y; r.lastIndex = 2; return [r.test('ab1'), r.lastIndex]; })());
    say('replace', text.slice(0, 60).replace(/\b(\w)(\w*)/g, (_, a, b) => a.toUpperCase() + b.length));
    say('many', (text.match(/(?:ab)+?b*/g) || []).length);
    say('split', 'a1b22c333'.split(/(\d+)/));
    let hits = 0;
    for (let i = 0; i < 20000; i++) if (/^(?:[a-z]+\d){1,3}$/i.test('abc' + i + 'x' + (i % 10))) hits++;
    say('hot', hits);
}

async function compression() {
    const data = Buffer.from(Array.from({ length: 200000 }, (_, i) => (i * i >> 5) & 0xff));
    for (const [name, pack, unpack] of [['gzip', zlib.gzipSync, zlib.gunzipSync], ['deflate', zlib.deflateSync, zlib.inflateSync], ['raw', zlib.deflateRawSync, zlib.inflateRawSync], ['brotli', zlib.brotliCompressSync, zlib.brotliDecompressSync]]) {
        const packed = pack(data);
        assert(unpack(packed).equals(data));
        say(name, [packed.length, digest(packed)]);
    }
    for (let level = 1; level <= 9; level++) say('level ' + level, zlib.deflateSync(data, { level }).length);
    say('asynchronous', (await new Promise((done, fail) => zlib.gzip(data, (error, out) => error ? fail(error) : done(out)))).length);
    try { zlib.gunzipSync(Buffer.from('not gzip')); } catch (error) { say('zlib error', error.code); }
}

function cryptography() {
    for (const name of ['md5', 'sha1', 'sha256', 'sha512', 'sha3-256', 'blake2b512', 'ripemd160']) say(name, crypto.createHash(name).update('relinked').digest('hex'));
    const key = Buffer.alloc(32, 7), iv = Buffer.alloc(16, 9);
    for (const name of ['aes-256-cbc', 'aes-256-ctr', 'aes-256-gcm', 'chacha20-poly1305']) {
        const cipher = crypto.createCipheriv(name, key, iv.subarray(0, /gcm|poly/.test(name) ? 12 : 16));
        say(name, Buffer.concat([cipher.update('some text to hide '.repeat(20)), cipher.final()]).toString('base64').slice(0, 60));
    }
    say('pbkdf2', crypto.pbkdf2Sync('word', 'salt', 1000, 32, 'sha512').toString('hex'));
    say('scrypt', crypto.scryptSync('word', 'salt', 32, { N: 1024 }).toString('hex'));
    const { publicKey, privateKey } = crypto.generateKeyPairSync('ec', { namedCurve: 'P-256' });
    say('signature', crypto.verify('sha256', Buffer.from('x'), publicKey, crypto.sign('sha256', Buffer.from('x'), privateKey)));
    const rsa = crypto.generateKeyPairSync('rsa', { modulusLength: 1024 });
    say('rsa', crypto.privateDecrypt(rsa.privateKey, crypto.publicEncrypt(rsa.publicKey, Buffer.from('secret'))).toString());
}

function language() {
    class Shape { #side; constructor(side) { this.#side = side; } get area() { return this.#side ** 2; } static of(n) { return new this(n); } }
    class Cube extends Shape { get volume() { return this.area * Math.sqrt(this.area); } toString() { return `cube ${this.volume}`; } }
    say('class', String(Cube.of(3)));
    function* naturals() { let n = 0; while (true) yield n++; }
    const taken = []; for (const n of naturals()) { if (n > 50) break; if (n % 7 === 3) taken.push(n); }
    say('generator', taken);
    say('bigint', (2n ** 200n % 1000000007n * 3n ** 50n).toString());
    say('float', [0.1 + 0.2, 1e21, 5e-324, -0, 123.456.toFixed(1), (255).toString(36), Number('0x1f'), Math.hypot(3, 4), Math.sin(1), Math.expm1(1e-10)]);
    say('map', [...new Map([[1, 'a'], ['1', 'b'], [NaN, 'c']]).entries()].length);
    say('proxy', new Proxy({}, { get: (_, name) => name + '!' }).anything);
    say('typed', Array.from(new Float32Array(new Uint8Array([0, 0, 128, 63, 0, 0, 0, 64]).buffer)));
    say('sort', Array.from({ length: 1000 }, (_, i) => i * 7919 % 1009).sort((a, b) => a - b).slice(500, 505));
    say('dates', [new Date(0).toISOString(), new Date(Date.UTC(2026, 10, 21)).toUTCString()]);
    say('intl', [new Intl.NumberFormat('de-DE').format(1234567.891), new Intl.DateTimeFormat('en-US', { timeZone: 'UTC' }).format(0), ['z', 'ä', 'a'].sort(new Intl.Collator('de').compare)]);
    say('url', new URL('../x?y=1&z=%20#h', 'http://user@example.com:8080/a/b/c').href);
    say('text', new TextDecoder('utf-16le').decode(new Uint8Array([104, 0, 105, 0])));
    let depth = 0; try { (function f() { depth++; f(); })(); } catch (error) { say('overflow', [error instanceof RangeError, depth > 1000]); }
    for (const code of ['let x = ;', 'null.f()', 'undefinedName', 'new Array(-1)', '"use strict"; delete Object.prototype', 'throw { x: 1 }']) try { (0, eval)(code); } catch (error) { say('thrown', String(error.message || error.x)); }
    const fibonacci = n => n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2);
    say('fibonacci', fibonacci(27));
    const size = 120, a = Array.from({ length: size * size }, (_, i) => i % 17), b = new Float64Array(size * size);
    for (let i = 0; i < size; i++) for (let j = 0; j < size; j++) { let s = 0; for (let k = 0; k < size; k++) s += a[i * size + k] * a[k * size + j]; b[i * size + j] = s; }
    say('matrix', b.reduce((x, y) => (x * 31 + y) % 1000003));
    const bytes = new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0, 1, 7, 1, 96, 2, 127, 127, 1, 127, 3, 2, 1, 0, 7, 7, 1, 3, 97, 100, 100, 0, 0, 10, 9, 1, 7, 0, 32, 0, 32, 1, 106, 11]);
    say('wasm', new WebAssembly.Instance(new WebAssembly.Module(bytes)).exports.add(40, 2));
}

async function workers() {
    const answers = await Promise.all([1, 2, 3, 4].map(n => new Promise((done, fail) => {
        const worker = new Worker(__filename, { workerData: { count: n * 300000 } });
        worker.on('message', done); worker.on('error', fail);
        worker.postMessage('hello worker' + n);
    })));
    answers.forEach(answer => say('worker', answer));
    await new Promise(done => { const worker = new Worker('throw new Error("in a worker")', { eval: true }); worker.on('error', error => { say('worker error', error.message); done(); }); });
    const shared = new Int32Array(new SharedArrayBuffer(4));
    await Promise.all([1, 2, 3].map(() => new Promise(done => new Worker('const { workerData } = require("worker_threads"); for (let i = 0; i < 10000; i++) Atomics.add(workerData, 0, 1);', { eval: true, workerData: shared }).on('exit', done))));
    say('shared', shared[0]);
}

async function system() {
    const fs = require('fs'), path = require('path'), http = require('http'), { execFileSync } = require('child_process'), { pipeline, Transform } = require('stream');
    fs.writeFileSync('file', 'some\nlines\n'.repeat(1000));
    let lines = 0;
    for await (const line of require('readline').createInterface({ input: fs.createReadStream('file') })) lines += line.length;
    say('readline', lines);
    say('directory', fs.readdirSync('/usr').length > 3 && path.resolve('/a/b', '../c'));
    say('child', execFileSync('echo', ['from', 'a', 'child']).toString());
    const double = new Transform({ transform(chunk, _, done) { done(null, chunk.toString().toUpperCase()); } });
    await new Promise((done, fail) => pipeline(fs.createReadStream('file'), double, zlib.createGzip(), fs.createWriteStream('file.gz'), error => error ? fail(error) : done()));
    say('pipeline', digest(zlib.gunzipSync(fs.readFileSync('file.gz'))));
    const server = http.createServer((request, response) => { response.setHeader('x-test', '1'); response.end(JSON.stringify({ url: request.url, method: request.method })); });
    await new Promise(done => server.listen(0, '127.0.0.1', done));
    const body = await new Promise((done, fail) => http.get({ port: server.address().port, path: '/p?q=1' }, response => { let text = ''; response.on('data', d => text += d).on('end', () => done(text)); }).on('error', fail));
    server.close();
    say('http', body);
    await new Promise(done => setTimeout(done, 20));
    say('order', await Promise.allSettled([Promise.resolve(1), Promise.reject(new Error('no')), new Promise(done => setImmediate(done, 3))]).then(all => all.map(one => one.status)));
    global.gc; const kept = []; for (let i = 0; i < 300000; i++) { const o = { i, s: 'x' + i }; if (i % 1000 === 0) kept.push(o); }
    say('garbage', kept.length);
}

async function main() {
    json();
    regexes();
    await compression();
    cryptography();
    language();
    await workers();
    await system();
}
