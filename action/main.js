// Starts a cluster that serves the steps after this one, until the job ends.
import { execFileSync } from 'node:child_process'
import * as fs from 'node:fs'
import * as path from 'node:path'

import * as core from '@actions/core'

import { inputs } from './inputs.js'
import { install, newest } from './install.js'
import { kubeconfigOf, logOf, start } from './server.js'

// The public keys of releases: scripts/action puts them beside the built programs.
const keys = new URL('../release-keys', import.meta.url)

async function main() {
  if (process.platform === 'win32') {
    throw new Error('this action needs a runner with Linux or macOS')
  }
  const asked = inputs()
  asked.secrets.forEach(core.setSecret)
  const trusted = fs.readFileSync(keys, 'utf8').trim().split(/\s+/)
  const version = asked.version === 'latest' ? await newest(asked.urlOf('latest'), trusted) : asked.version
  const home = fs.mkdtempSync(path.join(process.env.RUNNER_TEMP, 'karve-'))
  const programs = path.join(home, 'bin')
  await install(version, asked.urlOf(version), trusted, programs)
  core.addPath(programs)
  process.env.PATH = `${programs}${path.delimiter}${process.env.PATH}`

  // The post step finds the log, also that of a server that does not start.
  core.saveState('log', logOf(home))
  core.saveState('kubeconfig', kubeconfigOf(home))
  const took = await start(home, [
    '--secure-port', '0', '--insecure-port', '0', '--bind-address', '127.0.0.1',
    '--datastore-endpoint', 'memory://',
    ...(asked.nodes === '0' ? [] : ['--simulate-nodes', asked.nodes]),
    ...asked.args,
  ])
  core.info(`the cluster is ready after ${(took / 1000).toFixed(2)} s`)
  core.exportVariable('KUBECONFIG', kubeconfigOf(home))
  core.setOutput('kubeconfig', kubeconfigOf(home))
  core.setOutput('version', version)
  for (const manifest of asked.manifests) {
    apply(manifest)
  }
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
