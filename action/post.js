// Runs at the end of a job that has failed or was cancelled: its artifact has what tells why.
import { execFileSync } from 'node:child_process'
import * as crypto from 'node:crypto'
import * as fs from 'node:fs'
import * as path from 'node:path'

import { DefaultArtifactClient } from '@actions/artifact'
import * as core from '@actions/core'

async function post() {
  const log = core.getState('log')
  if (!log) {
    return // the server was not started
  }
  const files = [log, ...listings(path.dirname(log))]
  // Jobs of a matrix have one name and need artifacts of several.
  const name = core.getInput('log-artifact') || `karve-log-${process.env.GITHUB_JOB}-${crypto.randomBytes(3).toString('hex')}`
  await new DefaultArtifactClient().uploadArtifact(name, files, path.dirname(log))
}

/** listings writes what users look at first. It lists no contents of objects, which may be secret. */
function listings(directory) {
  const files = []
  for (const [kind, order] of [['events', '.metadata.creationTimestamp'], ['pods', '.metadata.namespace']]) {
    const file = path.join(directory, `${kind}.txt`)
    try {
      fs.writeFileSync(file, execFileSync('karve', ['kubectl', '--kubeconfig', core.getState('kubeconfig'), '--request-timeout=10s',
        'get', kind, '--all-namespaces', `--sort-by=${order}`, '--output=wide'], { stdio: ['ignore', 'pipe', 'pipe'] }))
      files.push(file)
    } catch (error) {
      core.info(`the artifact has no ${kind}: ${error.stderr || error.message}`)
    }
  }
  return files
}

post().catch(error => core.warning(`the server's log could not be uploaded: ${error.message}`))
