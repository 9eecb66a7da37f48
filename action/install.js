// The programs of a release, from the runner, from the cache or from the web.
import { execFileSync } from 'node:child_process'
import * as fs from 'node:fs'
import * as path from 'node:path'
import { fileURLToPath } from 'node:url'

import * as cache from '@actions/cache'
import * as core from '@actions/core'

/** releaseAt returns the version of the release at an address. The comment of its signature has it. */
export async function releaseAt(url) {
  const address = `${url.replace(/\/$/, '')}/SHA256SUMS.minisig`
  const response = await fetch(address)
  if (!response.ok) {
    throw new Error(`${address}: ${response.status} ${response.statusText}`)
  }
  const comment = /^trusted comment: karve (\S+)$/m.exec(await response.text())
  if (!comment) {
    throw new Error(`${address} is no signature of a release of Karve`)
  }
  return comment[1]
}

/**
 * install puts karve into a directory and returns that. install.sh checks the signature and
 * the checksum of a download; what the cache returns was checked when it was saved.
 */
export async function install(release, url) {
  // The cache finds a directory only by the same path.
  const directory = path.join(process.env.RUNNER_TOOL_CACHE, 'karve', release, process.arch)
  if (fs.existsSync(path.join(directory, 'karve'))) { // an earlier job of this runner
    core.info(`karve ${release} is in ${directory}`)
    return directory
  }
  const key = `karve-${release}-${process.platform}-${process.arch}`
  if (cache.isFeatureAvailable() && (await cache.restoreCache([directory], key))) {
    core.info(`karve ${release} was in the cache`)
    return directory
  }
  const script = fileURLToPath(new URL('../install.sh', import.meta.url))
  execFileSync('sh', [script, 'binary', directory], {
    stdio: 'inherit',
    env: { ...process.env, KARVE_DOWNLOAD_URL: url },
  })
  if (cache.isFeatureAvailable()) {
    try {
      await cache.saveCache([directory], key)
    } catch (error) { // another job of the same run may save it at the same time
      core.info(`karve was not put into the cache: ${error.message}`)
    }
  }
  return directory
}
