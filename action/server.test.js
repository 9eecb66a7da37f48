import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import * as fs from 'node:fs'
import * as os from 'node:os'
import * as path from 'node:path'
import { test } from 'node:test'

// run starts a server, which is a shell script, as the action does: in a process that has to end by itself.
function run(t, script, limit) {
  const home = fs.mkdtempSync(path.join(os.tmpdir(), 'karve-server-'))
  t.after(() => fs.rmSync(home, { recursive: true }))
  fs.writeFileSync(path.join(home, 'karve'), `#!/bin/sh\n${script}`, { mode: 0o755 })
  const program = `import { start } from ${JSON.stringify(new URL('server.js', import.meta.url).href)}
    try {
      await start(process.env.HOME, [], ${limit})
    } catch (error) {
      console.log(error.message)
      process.exitCode = 3
    }`
  const result = spawnSync(process.execPath, ['--input-type=module', '--eval', program], {
    env: { ...process.env, HOME: home, PATH: `${home}:${process.env.PATH}` }, encoding: 'utf8', timeout: 60_000, killSignal: 'SIGKILL',
  })
  const file = path.join(home, 'pids')
  const pids = fs.existsSync(file) ? fs.readFileSync(file, 'utf8').trim().split('\n').map(Number) : []
  t.after(() => pids.filter(alive).forEach(pid => process.kill(pid, 'SIGKILL')))
  return { ...result, pids }
}

// alive tells whether a process runs. One that has ended may wait for its parent to notice.
function alive(pid) {
  const state = spawnSync('ps', ['-o', 'stat=', '-p', String(pid)], { encoding: 'utf8' }).stdout.trim()
  return state !== '' && !state.startsWith('Z')
}

// gone waits until processes that were killed have ended.
async function gone(pids) {
  for (let i = 0; i < 1000 && pids.some(alive); i++) {
    await new Promise(resolve => setTimeout(resolve, 10))
  }
  return !pids.some(alive)
}

// A server with a program of its own, which both write their ids.
const forks = 'sleep 600 & echo $! >>"$HOME/pids"; echo $$ >>"$HOME/pids"\n'

test('a server that does not become ready is killed with what it started', async t => {
  const { status, signal, stdout, pids } = run(t, `${forks}seq 1 200; echo the last line; wait`, 2000)
  assert.equal(signal, null, 'the action hangs')
  assert.equal(status, 3)
  assert.match(stdout, /karve is not ready after 2 s:\n/)
  assert.match(stdout, /\nthe last line\n/)
  assert.doesNotMatch(stdout, /\n100\n/)
  assert.equal(pids.length, 2)
  assert.ok(await gone(pids), 'a process of the server still runs')
})

test('a server that ends leaves nothing behind', async t => {
  const { status, signal, stdout, pids } = run(t, `${forks}echo the last line; exit 7`, 60_000)
  assert.equal(signal, null, 'the action hangs')
  assert.equal(status, 3)
  assert.match(stdout, /karve did not start \(exit code 7\):\nthe last line\n/)
  assert.ok(await gone(pids), 'a process of the server still runs')
})

test('a server that is ready runs on', t => {
  const { status, signal, pids } = run(t, `${forks}echo karve is ready after 1 s; wait`, 60_000)
  assert.equal(signal, null, 'the action hangs')
  assert.equal(status, 0)
  assert.equal(pids.filter(alive).length, 2)
})

test('a server that cannot be started', t => {
  const { status, signal, stdout } = run(t, '', 60_000)
  assert.equal(signal, null, 'the action hangs')
  assert.equal(status, 3)
  assert.match(stdout, /karve did not start/)
})
