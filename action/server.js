// The server, which runs on when the action ends.
import { spawn } from 'node:child_process'
import * as fs from 'node:fs'
import * as os from 'node:os'
import * as path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'

// A busy runner may need that long.
const startLimit = 120_000

// How much of the log an error has. The artifact has all of it.
const tailLines = 50

/** logOf and kubeconfigOf are the files of the server whose directory is home. */
export const logOf = home => path.join(home, 'karve.log')
export const kubeconfigOf = home => path.join(home, 'data', 'admin.kubeconfig')

/**
 * start returns after how many milliseconds the server is ready. It runs on when this process ends. If it does not
 * become ready, it is killed with all that it started, and the error has the end of its log.
 */
export async function start(home, options, limit = startLimit) {
  const log = logOf(home)
  const out = fs.openSync(log, 'a', 0o600)
  const server = spawn('karve', ['server', '--config', os.devNull, '--data-dir', path.join(home, 'data'), ...options], {
    detached: true, // the leader of a process group
    stdio: ['ignore', out, out],
  })
  fs.closeSync(out)
  server.unref() // otherwise this process would wait for it, also after an error
  let ended = ''
  server.on('error', error => { ended = error.message })
  server.on('exit', (code, signal) => { ended = signal || `exit code ${code}` })
  const tail = () => fs.readFileSync(log, 'utf8').trimEnd().split('\n').slice(-tailLines).join('\n')
  const began = Date.now()
  let ready = false
  try {
    while (!/^karve is ready after .*\n/m.test(fs.readFileSync(log, 'utf8'))) {
      if (ended) {
        throw new Error(`karve did not start (${ended}):\n${tail()}`)
      }
      if (Date.now() - began > limit) {
        throw new Error(`karve is not ready after ${limit / 1000} s:\n${tail()}`)
      }
      await sleep(10)
    }
    ready = true
    return Date.now() - began
  } finally {
    if (!ready && server.pid) {
      kill(server.pid)
    }
  }
}

/** kill ends a process group. */
function kill(leader) {
  try {
    process.kill(-leader, 'SIGKILL')
  } catch (error) {
    if (error.code !== 'ESRCH') { // all have ended
      throw error
    }
  }
}
