// What the workflow asks for.
import * as fs from 'node:fs'

import * as core from '@actions/core'

const releases = 'https://github.com/karve-k8s/karve/releases'

/** inputs returns the checked inputs. The error of a wrong one names it. */
export function inputs() {
  const version = core.getInput('version')
  if (version !== 'latest' && !/^v\d+\.\d+\.\d+\+karve\.\d+$/.test(version)) {
    throw new Error(`version: ${version}: want a release such as v1.37.2+karve.1, or latest`)
  }
  const nodes = core.getInput('simulate-nodes')
  if (!/^\d+$/.test(nodes)) {
    throw new Error(`simulate-nodes: ${nodes}: want a number`)
  }
  const manifests = core.getMultilineInput('manifests')
  for (const manifest of manifests) {
    if (!/^https?:\/\//.test(manifest) && !fs.existsSync(manifest)) {
      throw new Error(`manifests: ${manifest} does not exist: check out the repository before this step, or mend the path`)
    }
  }
  const release = version === 'latest' ? 'latest/download' : `download/${encodeURIComponent(version)}`
  return {
    version,
    nodes,
    manifests,
    args: core.getMultilineInput('args'),
    url: process.env.KARVE_DOWNLOAD_URL || `${releases}/${release}`,
  }
}
