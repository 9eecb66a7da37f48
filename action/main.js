// Starts a cluster that serves the steps after this one, until the job ends.
import { execFileSync, spawn } from 'node:child_process'
import * as fs from 'node:fs'
import * as os from 'node:os'
import * as path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'

import * as core from '@actions/core'

import { inputs } from './inputs.js'
import { install, releaseAt } from './install.js'

// A busy runner may need that long.
const startLimit = 120_000

async function main() {
  if (process.platform === 'win32') {
    throw new Error('this action needs a runner with Linux or macOS')
  }
  const asked = inputs()
  const release = asked.version === 'latest' ? await releaseAt(asked.url) : asked.version
  const programs = await install(release, asked.url)
  core.addPath(programs)
  process.env.PATH = `${programs}${path.delimiter}${process.env.PATH}`

  const home = fs.mkdtempSync(path.join(process.env.RUNNER_TEMP, 'karve-'))
  const kubeconfig = path.join(home, 'data', 'admin.kubeconfig')
  await start(home, [
    '--secure-port', '0', '--insecure-port', '0', '--bind-address', '127.0.0.1',
    '--datastore-endpoint', 'memory://',
    ...(asked.nodes === '0' ? [] : ['--simulate-nodes', asked.nodes]),
    ...asked.args,
  ])
  core.exportVariable('KUBECONFIG', kubeconfig)
  core.setOutput('kubeconfig', kubeconfig)
  core.setOutput('version', release)
  for (const manifest of asked.manifests) {
    apply(manifest)
  }
}

/** start returns when the server is ready. It runs on when this process ends; its log is home/karve.log. */
async function start(home, options) {
  const log = path.join(home, 'karve.log')
  const out = fs.openSync(log, 'a', 0o600)
  // The post step finds the log, also that of a server that does not start.
  core.saveState('log', log)
  core.saveState('kubeconfig', path.join(home, 'data', 'admin.kubeconfig'))
  const server = spawn('karve', ['server', '--config', os.devNull, '--data-dir', path.join(home, 'data'), ...options], {
    detached: true,
    stdio: ['ignore', out, out],
  })
  fs.closeSync(out)
  let ended = ''
  server.on('error', error => { ended = error.message })
  server.on('exit', (code, signal) => { ended = signal || `exit code ${code}` })
  const began = Date.now()
  while (!/^karve is ready after .*\n/m.test(fs.readFileSync(log, 'utf8'))) {
    if (ended) {
      throw new Error(`karve did not start (${ended}):\n${fs.readFileSync(log, 'utf8')}`)
    }
    if (Date.now() - began > startLimit) {
      throw new Error(`karve is not ready after ${startLimit / 1000} s:\n${fs.readFileSync(log, 'utf8')}`)
    }
    await sleep(10)
  }
  server.unref()
  core.info(`the cluster is ready after ${((Date.now() - began) / 1000).toFixed(2)} s`)
}

/** apply makes the objects of a manifest. When it returns, the kinds of its CRDs are served. */
function apply(manifest) {
  const kubectl = args => execFileSync('karve', ['kubectl', ...args], { stdio: ['ignore', 'pipe', 'inherit'], encoding: 'utf8' })
  try {
    process.stdout.write(kubectl(['apply', '--server-side', '--filename', manifest]))
    if (kubectl(['get', 'crd', '--output', 'name'])) {
      kubectl(['wait', '--for=condition=Established', '--timeout=60s', 'crd', '--all'])
    }
  } catch {
    throw new Error(`manifests: ${manifest} could not be applied: kubectl says why above`)
  }
}

main().catch(error => core.setFailed(error.message))
